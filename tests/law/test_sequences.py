"""Whole continuations sampled through the loop, against the law they must have: Pearson's χ²."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from table_models import TableModel, draft_for, write_reply

from fsd_chat.decoding import rules, verification
from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.rules import Evidence, Rule
from fsd_chat.decoding.settings import Knob, Sampling

VOCABULARY, PROMPT, REPLIES = 4, [1, 2], 800
TARGET = TableModel(VOCABULARY, seed=3, sharpness=0.8)
DRAFT = draft_for(TARGET, noise=1.2, seed=4)
Continuation = tuple[int, ...]


def sampled(
    knob: Knob, tokens: int = 3, drafts: int = 2, greedy_draft: bool = False
) -> Counter[Continuation]:
    sampling = Sampling(temperature=1.0, greedy_draft=greedy_draft)
    counts: Counter[Continuation] = Counter()
    drafter = None if knob.rule == "target-only" else ModelDrafter(DRAFT)
    for seed in range(REPLIES):
        TARGET.rollback(0)
        DRAFT.rollback(0)
        committed = list(PROMPT)
        write_reply(
            TARGET,
            drafter,
            committed,
            knob=knob,
            sampling=sampling,
            lookahead=drafts,
            max_tokens=tokens,
            seed=seed,
        )
        counts[tuple(committed[len(PROMPT) :])] += 1
    return counts


def law_of(*models: TableModel) -> dict[Continuation, float]:
    """The law of continuations whose i-th token is drawn from the i-th model."""
    law = {}
    for said in product(range(VOCABULARY), repeat=len(models)):
        probability = 1.0
        for i, (model, token) in enumerate(zip(models, said, strict=True)):
            row = model.logits_after([*PROMPT, *said[:i]]).double().softmax(dim=-1)
            probability *= row[token].item()
        law[said] = probability
    return law


def p_value(counts: Counter[Continuation], law: dict[Continuation, float]) -> float:
    """The chance of counts at least this far from `law`; rare continuations are taken together."""
    total = sum(counts.values())
    assert counts.keys() <= law.keys()
    rare = [said for said, probability in law.items() if probability * total < 5]
    cells = [(counts[said], law[said] * total) for said in law if said not in rare]
    if rare:
        cells.append((sum(counts[said] for said in rare), sum(law[said] for said in rare) * total))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, half).item()


def shortened(counts: Counter[Continuation], tokens: int) -> Counter[Continuation]:
    shorter: Counter[Continuation] = Counter()
    for said, count in counts.items():
        shorter[said[:tokens]] += count
    return shorter


@pytest.mark.parametrize(
    "knob",
    [Knob(rule="exact"), Knob(rule="fsd", threshold=0.0), Knob(rule="target-only")],
    ids=lambda knob: knob.rule,
)
def test_lossless_decoding_has_the_targets_law_over_whole_continuations(knob: Knob) -> None:
    counts = sampled(knob)

    assert p_value(counts, law_of(TARGET, TARGET, TARGET)) > 0.001
    assert p_value(shortened(counts, 2), law_of(TARGET, TARGET)) > 0.001


def test_a_greedy_draft_leaves_the_targets_law_as_it_is() -> None:
    counts = sampled(Knob(rule="exact"), greedy_draft=True)

    assert p_value(counts, law_of(TARGET, TARGET, TARGET)) > 0.001


@pytest.mark.parametrize("rule", ["fsd", "fsd-paper"])
def test_at_the_bound_drafted_tokens_have_the_drafts_law_and_the_bonus_the_targets(
    rule: str,
) -> None:
    counts = sampled(Knob(rule=rule, threshold=0.7))

    assert p_value(counts, law_of(DRAFT, DRAFT, TARGET)) > 0.001
    assert p_value(counts, law_of(TARGET, TARGET, TARGET)) < 1e-6


def always(evidence: Evidence, T: object = None) -> torch.Tensor:
    return torch.ones(evidence.tokens.shape[0])


@pytest.mark.parametrize("rule", ["exact", "fsd"])
def test_without_the_coin_the_test_of_the_law_fails(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the tests above could not be believed."""
    monkeypatch.setattr(rules, "coin", always)
    monkeypatch.setattr(verification, "coin", always)
    if rule == "exact":
        monkeypatch.setitem(rules.RULES, "exact", Rule(always, rules.residual))

    counts = sampled(Knob(rule=rule, threshold=0.0))

    assert p_value(counts, law_of(TARGET, TARGET, TARGET)) < 1e-6
    assert p_value(shortened(counts, 2), law_of(TARGET, TARGET)) < 1e-6


def test_without_the_residual_the_test_of_the_law_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, "exact", Rule(rules.coin, rules.target_afresh))

    counts = sampled(Knob(rule="exact"))

    assert p_value(counts, law_of(TARGET, TARGET, TARGET)) < 1e-6


def test_the_p_value_is_that_of_pearsons_test() -> None:
    even = {(0,): 0.5, (1,): 0.5}

    assert p_value(Counter({(0,): 60, (1,): 40}), even) == pytest.approx(0.0455, abs=1e-4)
    assert p_value(Counter({(0,): 50, (1,): 50}), even) == 1.0
