"""Turning the threshold in steps that are even in effect.

Half of a threshold's range can be dead and a tenth of it decide everything, so a step is measured
in acceptance: on the positions verified lately, a token is accepted at threshold T if its
divergence is at most T, and otherwise with the chance that exact speculative decoding gives it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from fsd_chat.engine.messages import DIVERGENCES, VERIFIED, DivergenceName, RuleName, TokenRecord

BOUNDS: dict[DivergenceName, float] = {
    "js": math.log(2),
    "kl-draft-target": math.inf,
    "kl-target-draft": math.inf,
    "tv": 1.0,
    "js-as-released": math.inf,
}
"""The largest value each divergence can take, in nats (tv has no unit)."""

LADDER = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65)
"""Steps for js while no divergence has been seen; other divergences use it scaled."""
_LADDER_SCALE: dict[DivergenceName, float] = {
    "js": 1.0,
    "kl-draft-target": 6.0,
    "kl-target-draft": 6.0,
    "tv": 1.5,
    "js-as-released": 2.0,
}
KNOB_MAXIMUM: dict[RuleName, float] = {
    "lenient": 0.99,
    "typical": 1.0,
    "cactus": 10.0,
    "cascade-token": 1.0,
}
"""Rules whose knob is no divergence have a fixed range, starting at 0."""


@dataclass(frozen=True)
class Position:
    """One verified position: its divergence and exact speculative decoding's chance there."""

    divergence: float
    exact: float


def positions(
    tokens: Sequence[TokenRecord], divergence: DivergenceName | None = None
) -> list[Position]:
    """The verified positions among `tokens`, by the divergence that judged them or another."""
    index = DIVERGENCES.index(divergence) if divergence else None
    found = []
    for token in tokens:
        if token.origin not in VERIFIED or token.exact is None:
            continue
        value = token.divergence if index is None else _at(token.spectrum, index)
        if value is not None and not math.isnan(value):
            found.append(Position(value, token.exact))
    return found


def _at(spectrum: tuple[float, ...], index: int) -> float | None:
    return spectrum[index] if index < len(spectrum) else None


class AcceptanceCurve:
    """acceptance(T) on a set of verified positions; a step function that never falls."""

    def __init__(self, seen: Sequence[Position], rule: RuleName = "fsd") -> None:
        ordered = sorted(seen, key=lambda position: position.divergence)
        self.thresholds = [position.divergence for position in ordered]
        coin = [0.0 if rule == "fsd-paper" else position.exact for position in ordered]
        self._values = [sum(coin)]
        for chance in coin:
            self._values.append(self._values[-1] + 1.0 - chance)
        # Summing chances leaves rounding behind, and everything accepted must be exactly 1.
        self._values[-1] = float(len(ordered))
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def acceptance(self, threshold: float) -> float:
        """Expected accepted / verified at `threshold`. Raises ValueError if nothing was seen."""
        if not self._count:
            raise ValueError("no verified position has been seen")
        inside = bisect_right(self.thresholds, threshold) if threshold > 0 else 0
        return self._values[inside] / self._count

    def threshold_for(self, acceptance: float) -> float:
        """The least T that gives `acceptance` or more; the largest divergence seen if none does."""
        if not self._count:
            raise ValueError("no verified position has been seen")
        needed = bisect_left(self._values, acceptance * self._count - 1e-9)
        if needed == 0:
            return 0.0
        return self.thresholds[min(needed, self._count) - 1]


MINIMUM_SEEN = 20


def step(
    threshold: float,
    points: float,
    curve: AcceptanceCurve,
    rule: RuleName = "fsd",
    divergence: DivergenceName = "js",
) -> float:
    """The threshold `points` of acceptance (0.05 = five points) further up or, negative, down.

    Follows `curve` once it holds `MINIMUM_SEEN` positions, else a fixed ladder. Never moves the
    wrong way, always moves unless at an end, and stays between 0 and the divergence's bound.
    """
    if rule in KNOB_MAXIMUM:
        maximum = KNOB_MAXIMUM[rule]
        return min(maximum, max(0.0, threshold + points * maximum))
    if len(curve) < MINIMUM_SEEN:
        return _ladder_step(threshold, points, divergence)
    goal = curve.acceptance(threshold) + points
    if points > 0:
        reached = min(curve.threshold_for(min(1.0, goal)), BOUNDS[divergence])
        return reached if reached > threshold else _ladder_step(threshold, points, divergence)
    lowest = curve.acceptance(0.0)
    if goal <= lowest:
        return 0.0
    reached = curve.threshold_for(goal)
    return reached if reached < threshold else _ladder_step(threshold, points, divergence)


def _ladder_step(threshold: float, points: float, divergence: DivergenceName) -> float:
    scale = _LADDER_SCALE[divergence]
    bound = BOUNDS[divergence]
    rungs = [min(rung * scale, bound) for rung in LADDER]
    if math.isfinite(bound):
        rungs.append(bound)
    moves = max(1, round(abs(points) / 0.05))
    if points > 0:
        higher = [rung for rung in rungs if rung > threshold + 1e-9]
        if not higher:
            return threshold if math.isfinite(bound) else threshold * 1.25
        return higher[min(moves, len(higher)) - 1]
    lower = [rung for rung in reversed(rungs) if rung < threshold - 1e-9]
    return lower[min(moves, len(lower)) - 1] if lower else 0.0


def carry_over(
    threshold: float,
    old: DivergenceName,
    new: DivergenceName,
    tokens: Sequence[TokenRecord],
    rule: RuleName = "fsd",
) -> float | None:
    """T under `new` with the acceptance that `threshold` has under `old` on `tokens`.

    None when too few positions were seen to tell.
    """
    before = AcceptanceCurve(positions(tokens, old), rule)
    after = AcceptanceCurve(positions(tokens, new), rule)
    if min(len(before), len(after)) < MINIMUM_SEEN:
        return None
    if threshold <= 0:
        return 0.0
    return after.threshold_for(before.acceptance(threshold))
