"""A cache that is fed in pieces and rolled back says what no cache at all says."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from families.tiny import CONTEXT, FAMILIES, SLIDING, VOCABULARY, WINDOW, settings, tiny
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from fsd_chat.models import cached
from fsd_chat.models.cached import DynamicCachedModel
from fsd_chat.models.errors import ModelError

RECURRENT = {
    "mamba": {"state_size": 4},
    "falcon_h1": {
        "mamba_d_state": 8,
        "mamba_d_head": 8,
        "mamba_n_heads": 8,
        "mamba_d_ssm": 64,
        "mamba_chunk_size": 4,
        "head_dim": 8,
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "use_mamba_kernels": False,
        "mamba_d_state": 4,
    },
}
"""Read in pieces of several tokens: the first not at all, the second as it is, the third only where
a single token follows."""
ALL = (*FAMILIES, *RECURRENT)
TEXT = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
WRONG = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(2))
assert len(TEXT) // 2 > WINDOW


def model_of(family: str) -> PreTrainedModel:
    if family in FAMILIES:
        return tiny(family)
    torch.manual_seed(1)
    config = CONFIG_MAPPING[family](**settings(**RECURRENT[family]))
    model = AutoModelForCausalLM.from_config(config).float().eval()
    assert isinstance(model, PreTrainedModel)
    return model


def without_cache(model: PreTrainedModel) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=TEXT[None], use_cache=False).logits[0]


def over(model: PreTrainedModel, vocabulary: int = VOCABULARY) -> DynamicCachedModel:
    return DynamicCachedModel(model, vocabulary, CONTEXT)


def read_up_to(model: DynamicCachedModel, length: int) -> None:
    """As the loop does after a rollback that left fewer tokens than were asked for."""
    if model.length < length:
        model.forward(TEXT[model.length : length], rows=1)


def assert_alike(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ALL)
def test_a_text_read_in_pieces_gives_the_rows_of_one_reading(family: str) -> None:
    model = model_of(family)
    subject = over(model)
    rows = []
    for start, end in ((0, 5), (5, 6), (6, 13), (13, 14), (14, 30), (30, 31), (31, 40)):
        rows.append(subject.forward(TEXT[start:end], rows=end - start))
        subject.rollback(subject.length)
        assert subject.length == end
    assert_alike(torch.cat(rows), without_cache(model))


@pytest.mark.parametrize("family", ALL)
def test_after_a_rollback_the_wrong_tokens_have_left_no_trace(family: str) -> None:
    model = model_of(family)
    expected, subject, length = without_cache(model), over(model), 3
    read_up_to(subject, length)
    # Seven rounds of rejected drafts, before, across and far beyond the window.
    for wrong in (5, 1, 7, 3, 6, 2, 8):
        subject.forward(torch.cat([TEXT[length : length + 1], WRONG[:wrong]]), rows=wrong + 1)
        length += 1
        subject.rollback(length)
        read_up_to(subject, length)
        right = subject.forward(TEXT[length : length + 4], rows=4)
        assert_alike(right, expected[length : length + 4])
        length += 4
        subject.rollback(length)
        read_up_to(subject, length)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rollback_within_what_was_just_read_keeps_every_token_asked_for(family: str) -> None:
    subject = over(model_of(family))
    for start in range(0, 30, 5):
        subject.forward(TEXT[start : start + 5], rows=1)
        subject.forward(WRONG[:4], rows=4)
        subject.rollback(start + 5)
        assert subject.length == start + 5


@pytest.mark.parametrize("family", ALL)
def test_far_back_a_cache_keeps_what_it_still_knows_or_nothing(family: str) -> None:
    model = model_of(family)
    subject = over(model)
    subject.forward(TEXT[:30], rows=1)
    subject.rollback(30)
    subject.rollback(12)
    forgets = family in (*SLIDING, "lfm2", *RECURRENT)
    assert subject.length == (0 if forgets else 12)
    start = subject.length
    assert_alike(subject.forward(TEXT[start:], rows=40 - start), without_cache(model)[start:])


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_and_convolutions_can_roll_back(family: str) -> None:
    assert over(model_of(family)).can_roll_back


@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrent_state_cannot_roll_back_and_begins_anew(family: str) -> None:
    subject = over(model_of(family))
    assert not subject.can_roll_back
    subject.forward(TEXT[:10], rows=1)
    subject.rollback(10)
    assert subject.length == 10
    subject.rollback(9)
    assert subject.length == 0


def test_whether_a_model_rolls_back_is_known_before_it_has_read_anything() -> None:
    subject = over(model_of("mamba"))
    assert (subject.length, subject.can_roll_back) == (0, False)


def test_the_longest_rows_are_cut_to_the_ids_that_are_tokens() -> None:
    model = tiny("llama")
    rows = over(model, vocabulary=60).forward(TEXT[:6], rows=2)
    assert_alike(rows, without_cache(model)[4:6, :60])


def test_an_id_without_an_embedding_is_survived() -> None:
    subject = over(tiny("llama"))
    rows = subject.forward(torch.tensor([5, VOCABULARY + 1000]), rows=2)
    assert torch.isfinite(rows).all()


def test_a_rollback_to_more_than_there_is_is_refused() -> None:
    subject = over(tiny("llama"))
    subject.forward(TEXT[:4], rows=1)
    for length in (5, -1):
        with pytest.raises(ValueError, match="cannot roll a cache of 4 tokens back"):
            subject.rollback(length)


def test_layers_with_a_window_let_go_of_what_left_it() -> None:
    subject = over(tiny("mistral"))
    subject.forward(TEXT[:30], rows=1)
    subject.rollback(30)
    assert all(layer.keys.shape[-2] < WINDOW for layer in subject._cache.layers)


@pytest.mark.parametrize("kind", ["rwkv", "xlstm", "openai-gpt"])
def test_a_model_that_ignores_the_cache_is_refused(kind: str) -> None:
    config = CONFIG_MAPPING[kind](vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2)
    if kind == "openai-gpt":
        config = CONFIG_MAPPING[kind](vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4)
    with pytest.raises(ModelError, match="does not keep what it has read") as refusal:
        over(AutoModelForCausalLM.from_config(config))
    assert refusal.value.kind == "unsupported"


def test_a_model_whose_cache_gives_other_results_than_none_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = cached.read

    def forgetful(model: PreTrainedModel, cache: DynamicCache, tokens: Tensor, rows: int) -> Tensor:
        return read(model, cached.empty_cache(model) if len(tokens) == 1 else cache, tokens, rows)

    monkeypatch.setattr(cached, "read", forgetful)
    with pytest.raises(ModelError, match="gives other results with a cache than without"):
        over(model_of("mamba"))


def test_a_model_is_tried_out_once_and_not_kept_alive_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []
    try_out = cached._try_out
    monkeypatch.setattr(cached, "_try_out", lambda model: tried.append(1) or try_out(model))
    model = tiny("llama")
    over(model)
    over(model)
    assert tried == [1]
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
