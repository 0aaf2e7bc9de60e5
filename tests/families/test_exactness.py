"""Greedy decoding with a draft says, token for token, what the target's own `generate` says."""

from __future__ import annotations

import pytest
import torch
from families.tiny import (
    CONTEXT,
    FAMILIES,
    SLIDING,
    VOCABULARY,
    WINDOW,
    accepted,
    assert_cached,
    cached,
    generated,
    nearly,
    some_text,
    tiny,
    written,
)

from fsd_chat.decoding.drafting import FirstThatHas, ModelDrafter, PromptLookup
from fsd_chat.decoding.settings import Knob, Sampling

NEW = 24
PROMPT = 9
PENALTY = 1.3


def sampling(penalty: float, temperature: float = 0.0) -> Sampling:
    return Sampling(temperature=temperature, repetition_penalty=penalty)


@pytest.mark.parametrize("penalty", [1.0, PENALTY], ids=["plain", "penalised"])
@pytest.mark.parametrize("draft", ["nearly", "another"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_speculation_says_what_generate_says(
    family: str, draft: str, penalty: float
) -> None:
    target = tiny(family)
    drafter = ModelDrafter(cached(nearly(target) if draft == "nearly" else tiny(family, seed=2)))
    model, text = cached(target), some_text(PROMPT, seed=2)
    expected = generated(target, text, NEW, repetition_penalty=penalty)
    assert len(set(expected)) > 4, "a model that repeats itself proves nothing"

    rounds = written(model, drafter, text, NEW, sampling=sampling(penalty))

    assert text[PROMPT:] == expected
    assert_cached(model, target, text)
    # Both ways of ending a round must have happened, or the caches were not put to the test.
    if draft == "nearly":
        assert 0.3 < accepted(rounds) < 1
        assert any(round.accepted == round.drafted > 1 for round in rounds)
    else:
        assert accepted(rounds) < 0.3


@pytest.mark.parametrize("length", [WINDOW - 3, WINDOW, WINDOW + 1, 3 * WINDOW])
@pytest.mark.parametrize("family", SLIDING)
def test_prompts_on_either_side_of_a_sliding_window_make_no_difference(
    family: str, length: int
) -> None:
    target = tiny(family)
    drafter, model = ModelDrafter(cached(nearly(target))), cached(target)
    text = some_text(length, seed=length)
    expected = generated(target, text, NEW)

    written(model, drafter, text, NEW)

    assert text[length:] == expected
    assert_cached(model, target, text)
    assert_cached(drafter.model, drafter.model._model, text)


@pytest.mark.parametrize("family", SLIDING)
def test_the_window_matters_to_the_models_it_is_tested_with(family: str) -> None:
    target, unlimited = tiny(family), tiny(family, sliding_window=CONTEXT)
    text = some_text(3 * WINDOW, seed=1)
    assert generated(target, text, NEW) != generated(unlimited, text, NEW)


@pytest.mark.parametrize("cap", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_soft_capping_matters_to_the_model_it_is_tested_with(cap: str) -> None:
    text = torch.tensor([some_text(PROMPT, seed=2)])
    capped, uncapped = tiny("gemma2"), tiny("gemma2", **{cap: None})
    with torch.inference_mode():
        assert not torch.allclose(capped(text).logits, uncapped(text).logits, atol=0.1)


@pytest.mark.parametrize("penalty", [1.0, PENALTY], ids=["plain", "penalised"])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_that_is_the_target_is_always_accepted(
    family: str, temperature: float, penalty: float
) -> None:
    target = tiny(family)
    for rule, threshold in [("exact", 0.0), ("fsd", 0.0), ("fsd", 0.2), ("fsd-paper", 1e-4)]:
        text = some_text(2 * WINDOW, seed=4)
        rounds = written(
            cached(target),
            ModelDrafter(cached(target)),
            text,
            12,
            knob=Knob(rule=rule, threshold=threshold),
            sampling=sampling(penalty, temperature),
        )
        assert accepted(rounds) == 1, (rule, threshold)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_reply_ends_at_the_end_token_where_generate_ends(family: str) -> None:
    """Wherever the end token falls in a round, with a second one that is never said."""
    target = tiny(family)
    drafter = ModelDrafter(cached(nearly(target)))
    prompt = some_text(PROMPT, seed=2)
    said = generated(target, prompt, NEW)
    unsaid = next(token for token in range(VOCABULARY) if token not in said)
    for place in range(8):
        ends = [unsaid, said[place]]
        expected = generated(target, prompt, NEW, eos_token_id=ends)
        assert len(expected) < NEW

        model, text = cached(target), list(prompt)
        rounds = written(model, drafter, text, NEW, end_ids=ends, draft_length=5)

        assert text[PROMPT:] == expected
        assert rounds[-1].finish == "end"
        assert_cached(model, target, text)
        drafter.model.rollback(0)


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_copying_from_the_conversation_before_the_draft_model_changes_nothing(family: str) -> None:
    target = tiny(family)
    model = cached(nearly(target))
    drafter = FirstThatHas([PromptLookup(VOCABULARY, model.device), ModelDrafter(model)])
    text = some_text(6, seed=3) * 3
    expected = generated(target, text, NEW)

    rounds = written(cached(target), drafter, text, NEW)

    assert text[18:] == expected
    assert sum(round.drafted for round in rounds) > 0


@pytest.mark.parametrize("family", SLIDING)
def test_going_back_past_what_a_window_remembers_begins_anew_and_says_the_same(
    family: str,
) -> None:
    """Regenerating a long reply, and then editing the question."""
    target = tiny(family)
    model, drafter = cached(target), ModelDrafter(cached(nearly(target)))
    prompt = some_text(2 * WINDOW, seed=6)
    text = list(prompt)
    written(model, drafter, text, NEW)

    for kept in (2 * WINDOW, WINDOW, 3):
        again = prompt[:kept] + some_text(2, seed=kept)
        for cache in (model, drafter.model):
            cache.rollback(min(cache.length, kept))
        start = len(again)
        expected = generated(target, again, NEW)

        written(model, drafter, again, NEW)

        assert again[start:] == expected
        assert_cached(model, target, again)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_context_is_filled_and_never_overrun(family: str) -> None:
    """The last token of all need not fit: nothing follows it."""
    context, room = 32, 12
    places = "n_positions" if family == "gpt2" else "max_position_embeddings"
    target = tiny(family, **{places: context})
    model, drafter = cached(target, context=context), cached(nearly(target), context=context)
    text = some_text(context - room, seed=5)
    expected = generated(target, text, room + 1)

    rounds = written(model, ModelDrafter(drafter), text, 99, draft_length=5)

    assert context <= len(text) <= context + 1
    assert text[context - room :] == expected[: len(text) - context + room]
    assert rounds[-1].finish == "context"
