"""The knob's steps are even in effect."""

from __future__ import annotations

import math
import random

import pytest

from fsd_chat.engine.knob import (
    BOUNDS,
    LADDER,
    AcceptanceCurve,
    Position,
    carry_over,
    positions,
    step,
)
from fsd_chat.engine.messages import DIVERGENCES, Origin, TokenRecord


def seen(count: int = 400, seed: int = 3) -> list[Position]:
    """Half of the range dead, then everything in a tenth of it, as measured on the weak draft."""
    chance = random.Random(seed)
    return [Position(chance.uniform(0.35, 0.45), chance.uniform(0.1, 0.6)) for _ in range(count)]


def record(origin: Origin, divergence: float | None, exact: float | None = 0.5) -> TokenRecord:
    spectrum = () if divergence is None else tuple(divergence * scale for scale in range(1, 6))
    return TokenRecord(5, "x", origin, divergence, exact, spectrum=spectrum)


def test_acceptance_at_zero_is_what_exact_decoding_would_accept() -> None:
    curve = AcceptanceCurve([Position(0.0, 0.2), Position(0.3, 0.6)])
    assert curve.acceptance(0.0) == pytest.approx(0.4)


def test_acceptance_counts_a_divergence_equal_to_the_threshold_as_within() -> None:
    curve = AcceptanceCurve([Position(0.3, 0.0), Position(0.4, 0.0)])
    assert curve.acceptance(0.3) == pytest.approx(0.5)


def test_acceptance_never_falls_and_reaches_one_at_the_bound() -> None:
    curve = AcceptanceCurve(seen())
    values = [curve.acceptance(t / 100) for t in range(70)]
    assert values == sorted(values)
    assert curve.acceptance(BOUNDS["js"]) == 1.0


def test_the_papers_rule_gives_no_credit_to_the_coin() -> None:
    assert AcceptanceCurve([Position(0.3, 0.9)], "fsd-paper").acceptance(0.1) == 0.0


def test_an_empty_curve_says_so() -> None:
    with pytest.raises(ValueError, match="no verified position"):
        AcceptanceCurve([]).acceptance(0.1)


def test_a_step_changes_acceptance_by_about_five_points_wherever_the_knob_stands() -> None:
    curve = AcceptanceCurve(seen())
    threshold = 0.36
    while curve.acceptance(threshold) < 0.94:
        before = curve.acceptance(threshold)
        threshold = step(threshold, 0.05, curve)
        assert curve.acceptance(threshold) - before == pytest.approx(0.05, abs=0.01)


def test_a_step_up_leaves_the_dead_range_at_once() -> None:
    curve = AcceptanceCurve(seen())
    reached = step(0.0, 0.05, curve)
    assert 0.35 < reached < 0.45


def test_a_step_down_undoes_a_step_up() -> None:
    curve = AcceptanceCurve(seen())
    up = step(0.4, 0.05, curve)
    back = step(up, -0.05, curve)
    assert curve.acceptance(back) == pytest.approx(curve.acceptance(0.4), abs=0.01)


def test_enough_steps_down_reach_exactly_zero_and_stay_there() -> None:
    curve = AcceptanceCurve(seen())
    threshold = 0.44
    for _ in range(40):
        threshold = step(threshold, -0.05, curve)
    assert threshold == 0.0


def test_enough_steps_up_reach_the_bound_and_stay_there() -> None:
    threshold = 0.0
    for _ in range(60):
        threshold = step(threshold, 0.05, AcceptanceCurve(seen()))
    assert threshold == pytest.approx(math.log(2))


def test_without_divergences_the_steps_follow_the_ladder() -> None:
    nothing = AcceptanceCurve([])
    assert step(0.1, 0.05, nothing) == LADDER[LADDER.index(0.1) + 1]
    assert step(0.1, -0.05, nothing) == LADDER[LADDER.index(0.1) - 1]
    assert step(0.1, 0.20, nothing) == LADDER[LADDER.index(0.1) + 4]
    assert step(0.0, -0.05, nothing) == 0.0


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_every_step_moves_the_right_way_and_stays_in_range(divergence: str) -> None:
    chance = random.Random(5)
    for _ in range(200):
        count = chance.choice([0, 5, 200])
        scale = chance.choice([0.001, 0.5, 3.0])
        curve = AcceptanceCurve(
            [Position(chance.random() * scale, chance.random()) for _ in range(count)]
        )
        start = chance.choice([0.0, chance.random() * scale, 0.69])
        start = min(start, BOUNDS[divergence])  # type: ignore[index]
        up = step(start, 0.05, curve, divergence=divergence)  # type: ignore[arg-type]
        down = step(start, -0.05, curve, divergence=divergence)  # type: ignore[arg-type]
        assert start <= up <= BOUNDS[divergence]  # type: ignore[index]
        assert 0.0 <= down <= start
        assert down < start or start == 0.0
        assert up > start or start >= BOUNDS[divergence] - 1e-9  # type: ignore[index]


@pytest.mark.parametrize("rule", ["lenient", "typical", "cactus", "cascade-token"])
def test_a_knob_that_is_no_divergence_moves_over_its_own_range(rule: str) -> None:
    threshold = 0.0
    for _ in range(100):
        threshold = step(threshold, 0.05, AcceptanceCurve([]), rule)  # type: ignore[arg-type]
    assert 0.9 <= threshold <= 10.0
    for _ in range(100):
        threshold = step(threshold, -0.05, AcceptanceCurve([]), rule)  # type: ignore[arg-type]
    assert threshold == 0.0


def test_only_verified_positions_count() -> None:
    tokens = [
        record("accepted", 0.1),
        record("fuzzy", 0.2),
        record("recovered", 0.3),
        record("bonus", None, None),
        record("target", None, None),
    ]
    assert [position.divergence for position in positions(tokens)] == [0.1, 0.2, 0.3]
    under_tv = [position.divergence for position in positions(tokens, "tv")]
    assert under_tv == pytest.approx([0.4, 0.8, 1.2])


def test_changing_the_divergence_keeps_the_acceptance() -> None:
    tokens = [record("accepted", index / 100) for index in range(60)]
    carried = carry_over(0.3, "js", "kl-target-draft", tokens)
    assert carried is not None
    before = AcceptanceCurve(positions(tokens, "js")).acceptance(0.3)
    after = AcceptanceCurve(positions(tokens, "kl-target-draft")).acceptance(carried)
    assert after == pytest.approx(before)


def test_zero_stays_zero_when_the_divergence_changes() -> None:
    tokens = [record("accepted", index / 100) for index in range(60)]
    assert carry_over(0.0, "js", "tv", tokens) == 0.0


def test_too_few_positions_carry_nothing_over() -> None:
    assert carry_over(0.3, "js", "tv", [record("accepted", 0.1)] * 3) is None


def test_the_ends_of_the_knob_are_those_of_the_decoding_package() -> None:
    from fsd_chat.decoding.divergence import LARGEST, WHOLE_ROW

    assert LARGEST == BOUNDS
    assert tuple(WHOLE_ROW) == DIVERGENCES
