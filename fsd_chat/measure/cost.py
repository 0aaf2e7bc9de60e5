"""What a step of each model of a pair costs, and the speed-up that this predicts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fsd_chat.decoding.model import CachedModel


@dataclass(frozen=True)
class Costs:
    """Seconds, medians of interleaved repeats."""

    draft_s: float
    """One token."""
    target_s: Mapping[int, float]
    """By how many tokens are read at once; 1 is an ordinary step."""

    @property
    def ratio(self) -> float:
        """A draft's step against a target's."""
        return self.draft_s / self.target_s[1]

    def speed_up(self, acceptance: Sequence[float]) -> float:
        """Of drafting len(acceptance) tokens against the target alone: tokens per round (Leviathan
        et al. 2023, eq. 1, with an acceptance for each position) over the cost of a round."""
        k = len(acceptance)
        round_s = k * self.draft_s + self.target_s[k + 1]
        return tokens_per_round(acceptance) * self.target_s[1] / round_s


def tokens_per_round(acceptance: Sequence[float]) -> float:
    """One of the target's own, and every draft that is accepted with all before it."""
    expected, all_so_far = 1.0, 1.0
    for chance in acceptance:
        all_so_far *= chance
        expected += all_so_far
    return expected


def costs(
    target: CachedModel,
    draft: CachedModel,
    text: Sequence[int],
    widths: Sequence[int],
    repeats: int = 15,
) -> Costs:
    """Measure on models that read `text` first; the target at each of `widths` tokens, 1 among
    them. Everything is measured in turn, `repeats` times, so that a busy machine slows all."""
    tokens = torch.tensor(text)
    for model in (target, draft):
        model.rollback(0)
        model.forward(tokens.to(model.device), rows=1)
        model.rollback(model.length)
    taken: dict[int, list[float]] = {width: [] for width in (0, *widths)}
    for _ in range(repeats):
        for width in widths:
            taken[width].append(_seconds(target, tokens[:width], width))
        taken[0].append(_seconds(draft, tokens[:1], 1))
    medians = {width: statistics.median(times) for width, times in taken.items()}
    return Costs(draft_s=medians.pop(0), target_s=medians)


def _seconds(model: CachedModel, tokens: torch.Tensor, rows: int) -> float:
    length = model.length
    tokens = tokens.to(model.device)
    wait = _waiting(model.device)
    wait()
    start = time.perf_counter()
    model.forward(tokens, rows)
    wait()
    taken = time.perf_counter() - start
    model.rollback(length)
    return taken


def _waiting(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None
