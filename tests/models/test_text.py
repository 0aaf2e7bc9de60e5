"""Text that streams is the text that would have been decoded at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.conftest import byte_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fsd_chat.models.text import TextStream


def metaspace_tokenizer() -> Any:
    """As sentencepiece has it: the space belongs to the word, unknown characters are bytes."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁hello",
        "▁world",
        "s",
        "!",
    ]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


BYTES, PIECES = byte_tokenizer(), metaspace_tokenizer()


def streamed(tokenizer: Any, ids: list[int]) -> tuple[list[str], str]:
    stream = TextStream(tokenizer)
    return [stream.step(id) for id in ids], stream.flush()


def test_a_character_of_several_tokens_appears_when_it_is_whole() -> None:
    ids = BYTES("a🏳é").input_ids
    pieces, rest = streamed(BYTES, ids)
    assert pieces == ["a", "", "", "", "🏳", "", "é"]
    assert rest == ""


def test_an_incomplete_character_is_shown_as_such_at_the_end_only() -> None:
    ids = BYTES("a🏳").input_ids[:-1]
    pieces, rest = streamed(BYTES, ids)
    assert "".join(pieces) == "a"
    assert set(rest) == {"\N{REPLACEMENT CHARACTER}"}


def test_the_spaces_of_sentencepiece_are_kept() -> None:
    ids = [
        PIECES.convert_tokens_to_ids(piece) for piece in ("▁hello", "▁world", "s", "!", "▁hello")
    ]
    pieces, rest = streamed(PIECES, ids)
    assert "".join(pieces) + rest == "hello worlds! hello"
    assert pieces == ["hello", " world", "s", "!", " hello"]


def test_special_tokens_have_no_text() -> None:
    pieces, _ = streamed(BYTES, [*BYTES("a").input_ids, BYTES.eos_token_id])
    assert pieces == ["a", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "sentencepiece"])
@given(data=st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_pieces_join_to_the_whole_text(tokenizer: Any, data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc"])))
    ids = tokenizer(text, add_special_tokens=False).input_ids
    pieces, rest = streamed(tokenizer, ids)
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces) or "\N{REPLACEMENT CHARACTER}" in text
    assert "".join(pieces) + rest == tokenizer.decode(ids, skip_special_tokens=True)


@given(ids=st.lists(st.integers(0, 255), max_size=30))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_bytes_that_are_no_text_lose_nothing_that_is(ids: list[int]) -> None:
    pieces, rest = streamed(BYTES, ids)
    whole = BYTES.decode(ids, skip_special_tokens=True)
    marks = "\N{REPLACEMENT CHARACTER}"
    assert ("".join(pieces) + rest).replace(marks, "") == whole.replace(marks, "")
