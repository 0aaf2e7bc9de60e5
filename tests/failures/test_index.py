"""The index of known failures, and the description of the algorithm, name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
INDEX = (HERE / "README.md").read_text(encoding="utf-8")
ALGORITHM = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "least"), [(INDEX, 40), (ALGORITHM, 12)], ids=["index", "algorithm"]
)
def test_every_test_that_is_named_exists(text: str, least: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= least
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"def {name}\(", _source(ROOT / file))
    ]
    assert missing == []


def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def test_every_line_names_a_test_or_says_why_none_is_needed() -> None:
    rows = [line for line in INDEX.splitlines() if line.startswith("| ")]
    for row in rows:
        last = row.strip("|").split("|")[-1].strip()
        assert last == "test" or last.startswith("`tests/") or last.endswith("."), row
