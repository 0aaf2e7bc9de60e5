"""Targets and drafts that differ in the size of their rows, in their context and in their dtype."""

from __future__ import annotations

import pytest
import torch
from families.tiny import (
    accepted,
    assert_cached,
    cached,
    generated,
    nearly,
    some_text,
    tiny,
    written,
)
from transformers import PreTrainedModel

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.settings import Knob, Sampling

NEW = 24
TOKENS = 96
"""Ids that are tokens to both models; the rows of the target and of the draft go on beyond."""


def padded(rows: int, seed: int) -> PreTrainedModel:
    """A model whose padding, left as training happened to leave it, outweighs every token."""
    model = tiny("qwen2", seed, vocab_size=rows)
    with torch.no_grad():
        model.get_output_embeddings().weight[TOKENS:] *= 4
    return model


@pytest.mark.parametrize("rows", [(112, 104), (104, 112), (112, 112)])
@pytest.mark.parametrize("penalty", [1.0, 1.3], ids=["plain", "penalised"])
def test_rows_padded_to_different_sizes_give_what_generate_gives_without_the_padding(
    rows: tuple[int, int], penalty: float
) -> None:
    target, draft = padded(rows[0], seed=1), padded(rows[1], seed=1)
    text = some_text(9, seed=2, vocabulary=TOKENS)
    padding = list(range(TOKENS, rows[0]))
    assert set(generated(target, text, NEW)) & set(padding), "the padding must be tempting"
    expected = generated(target, text, NEW, suppress_tokens=padding, repetition_penalty=penalty)

    model = cached(target, vocabulary=TOKENS)
    drafter = ModelDrafter(cached(draft, vocabulary=TOKENS))
    sampling = Sampling(temperature=0.0, repetition_penalty=penalty)
    written(model, drafter, text, NEW, sampling=sampling)

    assert text[9:] == expected


@pytest.mark.parametrize("rule", ["exact", "fsd", "fsd-paper", "target-only"])
def test_no_padded_id_is_ever_sampled(rule: str) -> None:
    target, draft = padded(112, seed=1), padded(104, seed=2)
    text = some_text(9, seed=2, vocabulary=TOKENS)

    written(
        cached(target, vocabulary=TOKENS),
        ModelDrafter(cached(draft, vocabulary=TOKENS)),
        text,
        40,
        knob=Knob(rule=rule, threshold=0.3),
        sampling=Sampling(temperature=2.0),
    )

    assert max(text) < TOKENS


def test_a_prompt_may_hold_ids_that_the_draft_has_no_embedding_for() -> None:
    """Special tokens that only the target's template writes."""
    target, draft = tiny("llama", vocab_size=112), tiny("llama", seed=2, vocab_size=TOKENS)
    text = [111, *some_text(7, seed=2, vocabulary=TOKENS), 104]
    expected = generated(target, text, NEW, suppress_tokens=list(range(TOKENS, 112)))

    model = cached(target, vocabulary=TOKENS)
    written(model, ModelDrafter(cached(draft, vocabulary=TOKENS)), text, NEW)

    assert text[9:] == expected


@pytest.mark.parametrize("context", [4, 9, 10, 20, 33])
def test_beyond_the_drafts_context_the_target_goes_on_alone(context: int) -> None:
    target = tiny("gpt2")
    # GPT-2 has an embedding per place and fails beyond the last.
    draft = tiny("gpt2", n_positions=context)
    model, drafter = cached(target), ModelDrafter(cached(draft, context=context))
    text = some_text(9, seed=2)
    expected = generated(target, text, NEW)

    rounds = written(model, drafter, text, NEW, draft_length=4)

    assert text[9:] == expected
    assert drafter.model.length <= context
    last_drafted = max((r.index + 9 + r.drafted for r in rounds if r.drafted), default=0)
    assert last_drafted <= context
    assert (last_drafted > 0) == (context > 9)
    assert_cached(model, target, text)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_draft_in_half_precision_leaves_an_exact_target_exact(dtype: torch.dtype) -> None:
    target = tiny("llama")
    text = some_text(9, seed=2)
    expected = generated(target, text, NEW)

    rounds = written(cached(target), ModelDrafter(cached(nearly(target).to(dtype))), text, NEW)

    assert text[9:] == expected
    assert accepted(rounds) > 0.3


def test_a_target_in_half_precision_says_the_likeliest_token_or_one_as_good() -> None:
    """Reading several tokens at once rounds differently from reading one: near ties may fall
    either way, and nothing else may."""
    target = tiny("llama").to(torch.bfloat16)
    drafter = ModelDrafter(cached(nearly(tiny("llama"))))
    text = some_text(9, seed=2)

    written(cached(target), drafter, text, 4 * NEW)

    with torch.inference_mode():
        rows = target(torch.tensor([text])).logits[0, 8:-1].float()
    said = rows.gather(-1, torch.tensor(text[9:])[:, None])[:, 0]
    assert (rows.amax(dim=-1) - said).max() <= 0.02 * rows.std()
