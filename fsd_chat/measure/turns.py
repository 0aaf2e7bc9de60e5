"""How long a later turn of a conversation waits for its first token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.loop import Reply, decode
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.measure.speed import read

CACHED = 3000
"""Tokens of the turns before."""
NEW = 64
REPEATS = 7


@dataclass(frozen=True)
class LaterTurn:
    """Medians, in seconds, to the first round of a reply."""

    cached: int
    """Tokens that both models have read already."""
    new: int
    fresh_s: float
    """With the new tokens alone."""
    later_s: float
    """With the new tokens after the cached ones."""

    @property
    def ratio(self) -> float:
        return self.later_s / self.fresh_s


def later_turn(
    target: CachedModel, draft: CachedModel, text: Sequence[int], knob: Knob
) -> LaterTurn:
    """text: what both read; its last tokens are the new ones."""
    history = list(text[: min(CACHED, target.limit // 2, draft.limit // 2)])
    new = list(text[-NEW:])
    fresh = [_first_round(target, draft, [], new, knob) for _ in range(REPEATS)]
    later = [_first_round(target, draft, history, new, knob) for _ in range(REPEATS)]
    # The first of each has to make room, or to read the history.
    return LaterTurn(
        cached=len(history),
        new=len(new),
        fresh_s=statistics.median(fresh[1:]),
        later_s=statistics.median(later[1:]),
    )


def _first_round(
    target: CachedModel,
    draft: CachedModel,
    history: Sequence[int],
    new: Sequence[int],
    knob: Knob,
) -> float:
    for model in (target, draft):
        model.rollback(min(model.length, len(history)))
    read((target, draft), history)
    text = [*history, *new]
    start = time.perf_counter()
    read((target, draft), text[:-1])
    reply = Reply(
        knob=LiveKnob(knob),
        sampling=Sampling(temperature=0.0),
        stopping=Stopping(frozenset(), 64),
        seed=0,
    )
    next(decode(target, ModelDrafter(draft), text, reply))
    return time.perf_counter() - start
