"""Questions are found in every kind of file that people have."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsd_chat.distill.prompts import read_prompts
from fsd_chat.models.errors import ModelError

EXPORTED = """{"format": "fsd-chat", "messages": [
 {"role": "user", "content": "first"}, {"role": "assistant", "content": "no"},
 {"role": "user", "content": "second\\nline"}]}"""
MARKDOWN = (
    "# Chat\n\n- pair: smol\n\n## You\n\nfirst\n\nmore\n\n## smol\n\nno\n\n## You\n\nsecond\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("first\n\nsecond\nfirst\n", ["first", "second"]),
        ('"first"\n"second"\n', ["first", "second"]),
        ('{"prompt": "first"}\n\n{"text": "second"}', ["first", "second"]),
        ('["first", {"content": "second"}]', ["first", "second"]),
        (EXPORTED, ["first", "second\nline"]),
        (MARKDOWN, ["first\n\nmore", "second"]),
    ],
)
def test_every_question_once(tmp_path: Path, text: str, expected: list[str]) -> None:
    file = tmp_path / "prompts"
    file.write_text(text, encoding="utf-8")
    assert read_prompts(file) == expected


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "holds no question"),
        (b'{"prompt": "a"}\n{"prompt": ', "line 2, is no JSON"),
        (b"\xff\xfe\x00", "it is no UTF-8 text"),
    ],
)
def test_what_holds_none_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    file = tmp_path / "prompts"
    file.write_bytes(data)
    with pytest.raises(ModelError, match=what):
        read_prompts(file)
