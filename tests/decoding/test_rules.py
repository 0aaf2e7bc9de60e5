"""Each rule on evidence that can be checked in the head; its law is in tests/law."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fsd_chat.decoding.rules import RULES, TARGET_ONLY, Evidence, cascade, ratio

P = [0.5, 0.3, 0.2, 0.0]
Q = [0.2, 0.3, 0.4, 0.1]


def evidence(target: list[float] = P, draft: list[float] = Q, divergence: float = 0.2) -> Evidence:
    """Every token drafted once, each against the same rows."""
    count = len(target)
    return Evidence(
        torch.tensor(target).expand(count, -1),
        torch.tensor(draft).expand(count, -1),
        torch.arange(count),
        torch.full((count,), divergence),
    )


def accept(rule: str, threshold: float, given: Evidence | None = None) -> list[float]:
    chances: list[float] = RULES[rule].accept(given or evidence(), torch.tensor(threshold)).tolist()
    return chances


def replace(rule: str, threshold: float, given: Evidence | None = None) -> Tensor:
    return RULES[rule].replace(given or evidence(), torch.tensor(threshold))


COIN = [1.0, 1.0, 0.5, 0.0]
RESIDUAL = [0.3, 0.0, 0.0, 0.0]


def test_exact_accepts_by_the_ratio_and_replaces_from_the_residual_whatever_the_threshold() -> None:
    for threshold in (0.0, 0.5, math.inf):
        assert accept("exact", threshold) == pytest.approx(COIN)
        assert replace("exact", threshold)[0].tolist() == pytest.approx(RESIDUAL)


def test_fsd_accepts_by_the_coin_or_by_the_divergence() -> None:
    assert accept("fsd", 0.1) == pytest.approx(COIN)
    assert accept("fsd", 0.3) == [1.0] * 4
    assert replace("fsd", 0.1)[0].tolist() == pytest.approx(RESIDUAL)


@pytest.mark.parametrize("rule", ["fsd", "fsd-paper"])
def test_a_divergence_equal_to_the_threshold_is_within_it(rule: str) -> None:
    assert accept(rule, 0.25, evidence(divergence=0.25)) == [1.0] * 4


def test_fsd_at_zero_is_exact_even_where_the_rows_agree() -> None:
    assert accept("fsd", 0.0, evidence(divergence=0.0)) == pytest.approx(COIN)


def test_fsd_paper_looks_at_the_divergence_alone_and_replaces_from_the_target() -> None:
    assert accept("fsd-paper", 0.1) == [0.0] * 4
    assert accept("fsd-paper", 0.3) == [1.0] * 4
    assert replace("fsd-paper", 0.1)[0].tolist() == pytest.approx(P)


def test_fsd_paper_at_zero_accepts_only_where_the_rows_agree() -> None:
    assert accept("fsd-paper", 0.0, evidence(divergence=0.0)) == [1.0] * 4
    assert accept("fsd-paper", 0.0, evidence(divergence=1e-9)) == [0.0] * 4


@pytest.mark.parametrize("rule", ["lenient", "cactus", "fsd"])
def test_a_knob_at_zero_is_exact(rule: str) -> None:
    assert accept(rule, 0.0) == pytest.approx(COIN)
    assert replace(rule, 0.0)[0].tolist() == pytest.approx(RESIDUAL)


def test_lenient_multiplies_the_chance() -> None:
    assert accept("lenient", 0.2) == pytest.approx([1.0, 1.0, 0.5 / 0.8, 0.0])
    assert accept("lenient", 0.5) == pytest.approx([1.0, 1.0, 1.0, 0.0])
    assert replace("lenient", 0.5)[0].tolist() == pytest.approx(RESIDUAL)


def test_typical_accepts_what_is_likely_enough_for_the_targets_entropy() -> None:
    entropy = -sum(p * math.log(p) for p in P if p)
    epsilon = 0.36
    bar = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
    assert 0.2 < bar < 0.3

    assert accept("typical", 1 - epsilon) == [1.0, 1.0, 0.0, 0.0]
    assert replace("typical", 1 - epsilon)[0].tolist() == pytest.approx(P)


def test_typical_takes_the_lower_of_its_two_bars() -> None:
    sure = [0.94, 0.06, 0.0, 0.0]  # entropy 0.23: the other bar is 0.24
    assert accept("typical", 0.91, evidence(sure)) == [1.0, 0.0, 0.0, 0.0]
    assert accept("typical", 0.95, evidence(sure)) == [1.0, 1.0, 0.0, 0.0]


def test_cactus_raises_the_drafted_tokens_probability() -> None:
    raised = [p + math.sqrt(2 * 0.02 * p * (1 - p)) for p in P]

    chances = accept("cactus", 0.02)

    assert chances == pytest.approx([min(1, h / q) for h, q in zip(raised, Q, strict=True)])
    scale = (1 - raised[2]) / (1 - P[2])
    moved = [P[0] * scale, P[1] * scale, raised[2], P[3] * scale]
    residual = [max(0.0, m - q) for m, q in zip(moved, Q, strict=True)]
    assert replace("cactus", 0.02)[2].tolist() == pytest.approx(residual)


def test_cactus_never_raises_over_one_and_copes_with_a_certain_target() -> None:
    certain = evidence([1.0, 0.0, 0.0, 0.0])

    assert accept("cactus", 10.0) == [1.0, 1.0, 1.0, 0.0]
    assert accept("cactus", 10.0, certain) == [1.0, 0.0, 0.0, 0.0]
    assert replace("cactus", 10.0, certain)[1].tolist() == pytest.approx([0.8, 0, 0, 0])
    assert not bool(replace("cactus", 10.0, certain).isnan().any())


def test_cascade_trusts_the_draft_on_the_tokens_the_target_finds_likely() -> None:
    # α = 0.5: likely is 0.25 and more, tokens 0 and 1, on which Q has half its mass.
    pi = [0.2 + 0.5 * 0.5, 0.3 + 0.5 * 0.3, 0.5 * 0.2, 0.0]

    assert cascade(evidence(), torch.tensor(0.5))[0].tolist() == pytest.approx(pi)
    assert accept("cascade-token", 0.5) == pytest.approx([1.0, 1.0, 0.1 / 0.4, 0.0])
    residual = [max(0.0, a - b) for a, b in zip(pi, Q, strict=True)]
    assert replace("cascade-token", 0.5)[0].tolist() == pytest.approx(residual)


def test_cascade_at_zero_trusts_the_draft_on_the_likeliest_token_alone() -> None:
    pi = [0.2 + 0.8 * 0.5, 0.8 * 0.3, 0.8 * 0.2, 0.0]

    assert cascade(evidence(), torch.tensor(0.0))[0].tolist() == pytest.approx(pi)


def test_a_greedy_draft_is_accepted_with_the_targets_probability_of_it() -> None:
    point = [0.0, 1.0, 0.0, 0.0]

    assert accept("exact", 0.0, evidence(draft=point))[1] == pytest.approx(P[1])
    weights = replace("exact", 0.0, evidence(draft=point))[1].tolist()
    assert weights == pytest.approx([P[0], 0.0, P[2], 0.0])


def test_the_ratio_is_zero_for_what_the_numerator_rules_out_and_never_nan() -> None:
    chances = ratio(torch.tensor([0.0, 0.0, 0.3, 0.2]), torch.tensor([0.0, 0.5, 0.0, 0.4]))

    assert chances.tolist() == pytest.approx([0.0, 0.0, 1.0, 0.5])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0, 5.0, math.inf])
def test_chances_are_chances_and_weights_are_weights(rule: str, threshold: float) -> None:
    rows = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(1)).mul(3).softmax(dim=-1)
    rows[0, :3] = torch.tensor([1.0, 0, 0, 0, 0, 0])
    given = Evidence(rows[0], rows[1], torch.arange(50) % 6, torch.linspace(0, 0.69, 50))

    chances = torch.tensor(accept(rule, threshold, given))
    weights = replace(rule, threshold, given)

    assert bool(((chances >= 0) & (chances <= 1)).all())
    assert bool((weights >= 0).all())
    assert bool(weights.isfinite().all())


def test_one_position_of_the_evidence_is_all_of_its_parts() -> None:
    rows = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(2)).softmax(dim=-1)
    given = Evidence(rows[0], rows[1], torch.tensor([4, 0, 2]), torch.tensor([0.1, 0.2, 0.3]))

    one = given.row(torch.tensor([1]))

    assert torch.equal(one.target, rows[0, 1:2])
    assert torch.equal(one.draft, rows[1, 1:2])
    assert one.tokens.tolist() == [0]
    assert one.divergence.tolist() == pytest.approx([0.2])
    assert one.target_probability.tolist() == [rows[0, 1, 0].item()]
    assert one.draft_probability.tolist() == [rows[1, 1, 0].item()]


def test_target_only_judges_nothing() -> None:
    assert TARGET_ONLY not in RULES
