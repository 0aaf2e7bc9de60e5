"""Two models can work together if an id means the same to both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from models.conftest import byte_tokenizer
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from fsd_chat.models.errors import ModelError
from fsd_chat.models.vocabulary import compare, tokens_of, usable

WRITES_TURN = "{% for m in messages %}<turn>{{ m.content }}{% endfor %}"


def words(
    tokens: Sequence[str] | dict[str, int],
    added: Sequence[str] = (),
    template: str | None = None,
    end: str | None = None,
) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, numbered as they come, and added tokens after them."""
    vocabulary = tokens if isinstance(tokens, dict) else {one: id for id, one in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=next(iter(vocabulary))))
    backend.add_tokens([AddedToken(one, special=False) for one in added])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, eos_token=end)


def count(number: int) -> list[str]:
    return [f"w{id}" for id in range(number)]


def refused(target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast) -> str:
    with pytest.raises(ModelError) as error:
        compare(target, draft)
    assert error.value.kind == "vocabulary"
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_same_tokenizer_agrees_without_a_word() -> None:
    agreement = compare(byte_tokenizer(), byte_tokenizer())
    assert agreement.common == 260
    assert agreement.notices == ()


def test_the_ids_both_have_are_used_where_the_sizes_differ() -> None:
    for target, draft in ((100, 90), (90, 100)):
        agreement = compare(words(count(target)), words(count(draft)))
        assert agreement.common == 90
        assert f"the target has {target} tokens and the draft {draft}" in agreement.notices[0]


def test_another_vocabulary_is_refused_with_both_sizes_and_the_first_difference() -> None:
    other = [*count(7), "other", *count(80)[8:]]
    other[20] = "one more"
    message = refused(words(count(100)), words(other))
    assert "80 tokens against 100" in message
    assert "token 7 is 'other' in the draft and 'w7' in the target" in message


def test_special_tokens_that_the_template_does_not_write_may_differ_and_are_reported() -> None:
    target, draft = words(count(50), ["<think>", "<a>"]), words(count(50), ["<im_end>", "<a>"])
    agreement = compare(target, draft)
    assert agreement.common == 52
    assert agreement.notices == (
        "target and draft differ in special tokens: 50 is '<think>' in the target and '<im_end>' "
        "in the draft",
    )


def test_many_differing_special_tokens_are_counted_rather_than_listed() -> None:
    target = words(count(9), [f"<t{i}>" for i in range(10)])
    draft = words(count(9), [f"<d{i}>" for i in range(10)])
    (notice,) = compare(target, draft).notices
    assert "<t2>" in notice
    assert "<t3>" not in notice
    assert notice.endswith("and 7 more")


def test_a_token_that_the_template_writes_must_be_the_same() -> None:
    target = words(count(50), ["<turn>"], WRITES_TURN)
    message = refused(target, words(count(50), ["<other>"]))
    assert "token 50 is '<other>' in the draft and '<turn>' in the target" in message


def test_a_draft_must_have_every_token_that_the_template_writes() -> None:
    target = words(count(50), ["<turn>"], WRITES_TURN)
    assert "token 50 is none in the draft" in refused(target, words(count(50)))
    assert "token 50 is none in the draft" in refused(target, words(count(40)))


def test_a_draft_must_have_the_end_token() -> None:
    target = words(count(50), ["<end>"], end="<end>")
    assert "token 50 is none in the draft and '<end>' in the target" in refused(
        target, words(count(50))
    )


def test_a_draft_may_have_tokens_of_its_own_beyond_the_targets() -> None:
    agreement = compare(words(count(50)), words(count(50), ["<mine>"]))
    assert agreement.common == 50


def test_an_id_that_one_of_them_does_not_use_is_tolerated() -> None:
    gap = {f"w{id}": id for id in range(50) if id != 30}
    assert compare(words(gap), words(count(50))).common == 50
    assert len(tokens_of(words(gap))) == 50


def test_rows_that_a_converter_named_padding_are_no_tokens() -> None:
    padded = [*count(50), *(f"[PAD{id}]" for id in range(50, 60))]
    assert len(tokens_of(words(padded))) == 50
    assert usable(words(padded), rows=60) == 50
    assert compare(words(padded), words(count(50))).common == 50


def test_a_models_rows_are_used_up_to_its_last_token() -> None:
    assert usable(byte_tokenizer(), rows=512) == 260
    assert usable(byte_tokenizer(), rows=100) == 100
