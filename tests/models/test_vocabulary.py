"""Two models can work together if an id means the same to both."""

from __future__ import annotations

from typing import Any

import pytest
from models.conftest import byte_tokenizer

from fsd_chat.models.errors import ModelError
from fsd_chat.models.vocabulary import compare


class Fake:
    """The two questions that are asked of a tokenizer."""

    def __init__(self, tokens: dict[str, int], added: dict[str, int] | None = None) -> None:
        self._tokens, self._added = tokens, added or {}

    def get_vocab(self) -> dict[str, int]:
        return {**self._tokens, **self._added}

    def get_added_vocab(self) -> dict[str, int]:
        return self._added


def words(count: int) -> dict[str, int]:
    return {f"w{id}": id for id in range(count)}


def test_the_same_tokenizer_agrees_without_a_word() -> None:
    agreement = compare(byte_tokenizer(), byte_tokenizer())
    assert agreement.common == 260
    assert agreement.notices == ()


def test_the_ids_both_have_are_used_where_the_sizes_differ() -> None:
    agreement = compare(Fake(words(100)), Fake(words(90)))
    assert agreement.common == 90
    assert "differ in size (100 and 90)" in agreement.notices[0]


def test_another_vocabulary_is_refused_with_both_sizes_and_the_first_difference() -> None:
    other = {**words(80), "other": 7}
    del other["w7"]
    with pytest.raises(ModelError) as refused:
        compare(Fake(words(100)), Fake(other))
    message = str(refused.value)
    assert refused.value.kind == "vocabulary"
    assert "80 tokens against 100" in message
    assert "token 7 is 'other' in the draft and 'w7' in the target" in message
    assert "\n" not in message


def test_special_tokens_may_differ_and_are_reported() -> None:
    target: Any = Fake(words(50), {"<think>": 50, "<a>": 51})
    draft: Any = Fake(words(50), {"<|im_end|>": 50, "<a>": 51})
    agreement = compare(target, draft)
    assert agreement.common == 52
    assert "50 ('<think>' / '<|im_end|>')" in agreement.notices[0]
