"""Text that streams is the text that would have come at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.conftest import byte_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fsd_chat.models.text import TextStream

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "▁hi", "▁the", "a", "b", "é", "▁é", "\n", "▁▁", ".", "▁.", "s", "ing"]


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def sentencepiece(*last_steps: decoders.Decoder) -> PreTrainedTokenizerFast:
    """▁ stands for a space, and single bytes for what no piece fits."""
    names = {name: id for id, name in enumerate([*SPECIAL, *BYTES, *PIECES])}
    tokenizer = Tokenizer(models.BPE(names, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last_steps]
    tokenizer.decoder = decoders.Sequence(steps)
    return wrapped(tokenizer)


def unigram() -> PreTrainedTokenizerFast:
    """With the library's own treatment of spaces."""
    worth = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0} | dict.fromkeys(BYTES, -9.0)
    pieces = list((worth | dict.fromkeys(PIECES, -2.0)).items())
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return wrapped(tokenizer)


FALLING_BACK = {
    # Not shown: the space before the first word.
    "llama": sentencepiece(decoders.Strip(" ", 1, 0)),
    "gemma": sentencepiece(),
    "unigram": unigram(),
}
TOKENIZERS = {"byte-level": byte_tokenizer(), **FALLING_BACK}
FAMILY = "👩‍👩‍👧"
WORDS = [
    "hi",
    " hi",
    " ",
    "  ",
    "é",
    "😀",
    FAMILY,
    "日本語",
    "שלום",
    "a",
    " the",
    "\n",
    ".",
    " .",
    "Привет",
]


def streamed(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*map(stream.step, ids), stream.flush()]


def at_once(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    return tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert isinstance(ids, list)
    return ids


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(words=st.lists(st.sampled_from(WORDS), max_size=12))
@settings(deadline=None)
def test_whatever_is_written_arrives_whole(kind: str, words: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = ids_of(tokenizer, "".join(words))
    assert "".join(streamed(tokenizer, ids)) == at_once(tokenizer, ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=st.text(st.characters(exclude_characters=REPLACEMENT, codec="utf-8"), max_size=12))
@settings(deadline=None)
def test_no_replacement_character_is_seen_while_a_character_is_incomplete(
    kind: str, text: str
) -> None:
    assert REPLACEMENT not in "".join(streamed(TOKENIZERS[kind], ids_of(TOKENIZERS[kind], text)))


@given(ids=st.lists(st.integers(0, len(TOKENIZERS["byte-level"]) - 1), max_size=24))
@settings(deadline=None)
def test_random_bytes_arrive_as_decoding_them_at_once_gives_them(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert "".join(streamed(tokenizer, ids)) == at_once(tokenizer, ids)


@pytest.mark.parametrize("kind", FALLING_BACK)
@given(ids=st.lists(st.integers(0, len(TOKENIZERS["llama"]) - 2), max_size=24))
@settings(deadline=None)
def test_stray_bytes_cost_at_most_themselves(kind: str, ids: list[int]) -> None:
    tokenizer = FALLING_BACK[kind]
    # A special token between two bytes is not shown, and they may make a character after all.
    ids = [id for id in ids if id not in tokenizer.all_special_ids]
    assert re.fullmatch(_pattern(tokenizer, ids), "".join(streamed(tokenizer, ids)), re.DOTALL)


def _pattern(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """The text to expect, with leeway only for runs of bytes that are no UTF-8."""
    names = [tokenizer.convert_ids_to_tokens(id) for id in ids]
    parts, at = [], 0
    for is_byte, run in groupby(names, key=BYTES.__contains__):
        count = len(list(run))
        text = at_once(tokenizer, ids[: at + count])
        before = at_once(tokenizer, ids[:at])
        run_text = text[len(before) :] if text.startswith(before) else None
        if is_byte and (run_text is None or REPLACEMENT in run_text):
            parts.append(f".{{1,{count}}}")
        else:
            assert run_text is not None
            parts.append(re.escape(run_text))
        at += count
    return "".join(parts)


def test_an_emoji_over_several_tokens_appears_when_its_last_byte_does() -> None:
    for tokenizer in TOKENIZERS.values():
        ids = ids_of(tokenizer, "a😀b")
        steps = streamed(tokenizer, ids)
        assert [step for step in steps if step.strip()] == ["a", "😀", "b"]


def test_a_character_that_never_completes_is_shown_as_one_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    *begun, _ = ids_of(tokenizer, "a😀")
    *steps, rest = streamed(tokenizer, begun)
    assert "".join(steps) == "a"
    assert rest == REPLACEMENT


def test_words_keep_the_spaces_between_them() -> None:
    for tokenizer in FALLING_BACK.values():
        steps = streamed(tokenizer, ids_of(tokenizer, "hi the hi"))
        assert "".join(steps).strip() == "hi the hi"


def test_a_space_before_a_full_stop_stays() -> None:
    for tokenizer in TOKENIZERS.values():
        assert "".join(streamed(tokenizer, ids_of(tokenizer, "hi ."))).lstrip() == "hi ."


def test_special_tokens_have_no_text() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert streamed(tokenizer, [tokenizer.eos_token_id, *ids_of(tokenizer, "a")]) == ["", "a", ""]


def test_after_a_stray_byte_the_text_goes_on() -> None:
    for tokenizer in FALLING_BACK.values():
        ids = tokenizer.convert_tokens_to_ids(["<0xC3>", "<0xA9>", "<0xF0>", "▁hi", "▁the", "▁hi"])
        assert "".join(streamed(tokenizer, ids)) == f"é{REPLACEMENT} hi the hi"


def test_after_a_flush_a_new_text_begins() -> None:
    tokenizer = TOKENIZERS["llama"]
    stream = TextStream(tokenizer)
    texts = []
    for _ in range(2):
        said = [stream.step(id) for id in ids_of(tokenizer, "hi")]
        texts.append("".join(said) + stream.flush())
    assert texts == ["hi", "hi"]
