"""Penalties and biases, with the drafted tokens in view."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from fsd_chat.decoding.penalties import Penalties
from fsd_chat.decoding.settings import Sampling

VOCABULARY = 12
CPU = torch.device("cpu")
EVERYTHING = Sampling(
    repetition_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.25,
    logit_bias={2: 1.5, 7: -math.inf},
)
NOTHING_DRAFTED = torch.empty(0, dtype=torch.long)


def random_rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


def penalties(sampling: Sampling, prompt: list[int], said: list[int]) -> Penalties:
    begun = Penalties(sampling, prompt, VOCABULARY, CPU)
    begun.commit(said)
    return begun


def penalised(
    sampling: Sampling, prompt: list[int], said: list[int], logits: list[float]
) -> list[float]:
    row = torch.zeros(1, VOCABULARY)
    row[0, : len(logits)] = torch.tensor(logits)
    changed = penalties(sampling, prompt, said).apply(row, NOTHING_DRAFTED)
    values: list[float] = changed[0, : len(logits)].tolist()
    return values


@pytest.mark.parametrize("penalty", [0.7, 1.1, 2.0])
def test_repetition_is_penalised_as_transformers_does_it(penalty: float) -> None:
    prompt, said = [1, 2, 2, 5], [7, 1]
    logits = random_rows(1)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)

    ours = penalties(Sampling(repetition_penalty=penalty), prompt, said)

    expected = theirs(torch.tensor([prompt + said]), logits.clone())
    assert torch.allclose(ours.apply(logits, NOTHING_DRAFTED), expected)


def test_presence_counts_a_said_token_once_and_the_prompt_not_at_all() -> None:
    changed = penalised(Sampling(presence_penalty=0.5), [0], [1, 2, 2], [3.0, 3.0, 3.0, 3.0])

    assert changed == pytest.approx([3.0, 2.5, 2.5, 3.0])


def test_frequency_counts_a_said_token_every_time_and_the_prompt_not_at_all() -> None:
    changed = penalised(Sampling(frequency_penalty=0.5), [0], [1, 2, 2], [3.0, 3.0, 3.0, 3.0])

    assert changed == pytest.approx([3.0, 2.5, 2.0, 3.0])


def test_a_bias_is_added_and_minus_infinity_bans() -> None:
    changed = penalised(Sampling(logit_bias={0: 2.0, 1: -math.inf}), [], [], [1.0, 1.0, 1.0])

    assert changed == [3.0, -math.inf, 1.0]


def test_a_bias_on_a_token_outside_the_vocabulary_has_no_effect() -> None:
    changed = penalised(Sampling(logit_bias={VOCABULARY: 5.0, 10**6: 1.0}), [], [], [1.0, 2.0])

    assert changed == [1.0, 2.0]


def test_tokens_outside_the_shared_vocabulary_are_not_counted() -> None:
    changed = penalised(EVERYTHING, [VOCABULARY + 3], [VOCABULARY], [1.0, 2.0])

    assert changed == [1.0, 2.0]


def test_without_penalties_the_logits_are_passed_on_untouched() -> None:
    logits = random_rows(3)

    assert penalties(Sampling(), [1], [2]).apply(logits, torch.tensor([1, 2])) is logits


def test_rows_verified_together_are_penalised_as_one_at_a_time() -> None:
    prompt, said, drafts = [1, 2, 9], [4, 4], [2, 4, 2, 11]
    logits = random_rows(len(drafts) + 1)

    together = penalties(EVERYTHING, prompt, said).apply(logits, torch.tensor(drafts))

    for i in range(len(drafts) + 1):
        alone = penalties(EVERYTHING, prompt, said + drafts[:i])
        expected = alone.apply(logits[i : i + 1], NOTHING_DRAFTED)
        assert torch.equal(together[i : i + 1], expected), i


def test_a_drafts_row_is_penalised_for_the_drafts_before_it() -> None:
    """A draft identical to its target would otherwise be rejected under a repetition penalty."""
    prompt, said, drafts = [1, 2, 9], [4, 4], [2, 4, 2, 11]
    logits = random_rows(len(drafts) + 1)
    together = penalties(EVERYTHING, prompt, said).apply(logits, torch.tensor(drafts))

    for i in range(len(drafts) + 1):
        one = penalties(EVERYTHING, prompt, said)
        row = one.apply_last(logits[i : i + 1], torch.tensor(drafts[:i], dtype=torch.long))
        assert torch.equal(row, together[i : i + 1]), i


def test_drafts_that_were_not_committed_leave_no_trace() -> None:
    logits = random_rows(3)
    tried = penalties(EVERYTHING, [1], [4])

    before = tried.apply(logits[:1], NOTHING_DRAFTED)
    tried.apply(logits, torch.tensor([5, 6]))
    tried.apply_last(logits[:1], torch.tensor([5, 6]))

    assert torch.equal(tried.apply(logits[:1], NOTHING_DRAFTED), before)


def test_a_banned_logit_stays_banned_and_nothing_becomes_nan() -> None:
    logits = torch.full((1, VOCABULARY), -math.inf)
    logits[0, 3] = 1.0

    changed = penalties(EVERYTHING, [1, 3], [3, 5]).apply(logits, NOTHING_DRAFTED)

    assert not bool(changed.isnan().any())
    assert (changed[0] > -math.inf).nonzero()[:, 0].tolist() == [3]
