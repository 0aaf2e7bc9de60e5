"""What a round costs beside the two models: sampling, comparing rows, deciding, recording."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.loop import Reply, decode
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping

LARGE = 152_064
"""Ids of Qwen2.5 7B,"""
LARGE_BYTES = 15_231_233_024
"""and its weights in bfloat16: every step reads them once."""
ROUNDS = 60
READ = 1 << 29


@dataclass(frozen=True)
class Bookkeeping:
    """Of one round, in seconds."""

    own_s: float
    """With as many ids as the pair has."""
    large_s: float
    """With `LARGE` ids."""
    bandwidth: float
    """Bytes that the device reads in a second."""

    @property
    def large_share(self) -> float:
        """Of a round of a target of `LARGE_BYTES`, if reading it took no longer than memory does;
        the draft's steps count as nothing."""
        return self.large_s / (self.large_s + LARGE_BYTES / self.bandwidth)


def bookkeeping(
    vocabulary: int, device: torch.device, dtype: torch.dtype, knob: Knob, sampling: Sampling
) -> Bookkeeping:
    """Measure the decoding loop on rows that are there before it asks for them."""

    def seconds(ids: int) -> float:
        return _round(ids, device, dtype, knob, sampling)

    own = seconds(vocabulary)
    return Bookkeeping(own, seconds(LARGE), read_bandwidth(device))


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over more than any cache holds reaches."""
    values = torch.ones(READ // 4, device=device)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        float(values.sum())
        times.append(time.perf_counter() - start)
    return READ / min(times)


class Prepared:
    """A cached model that has its rows ready, and knows how long handing them over took."""

    can_roll_back = True
    limit = 1 << 30

    def __init__(self, rows: Tensor) -> None:
        self.vocabulary, self.device = rows.shape[1], rows.device
        self.length, self.seconds = 0, 0.0
        self._rows = rows

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        start = time.perf_counter()
        first = self.length % (self._rows.shape[0] - rows)
        self.length += tokens.shape[0]
        found = self._rows[first : first + rows].clone()
        self.seconds += time.perf_counter() - start
        return found

    def rollback(self, length: int) -> None:
        self.length = length


def _round(
    vocabulary: int, device: torch.device, dtype: torch.dtype, knob: Knob, sampling: Sampling
) -> float:
    generator = torch.Generator().manual_seed(0)
    likely = 4 * torch.randn(24, vocabulary, generator=generator)
    # Rows that often agree, so that rounds end as they do in a chat.
    target, draft = (
        Prepared((likely + torch.randn(likely.shape, generator=generator)).to(device, dtype))
        for _ in range(2)
    )
    reply = Reply(LiveKnob(knob), sampling, Stopping(frozenset(), 1 << 20), seed=0)
    rounds = decode(target, ModelDrafter(draft), [0], reply)
    taken = []
    for _ in range(ROUNDS):
        before, start = target.seconds + draft.seconds, time.perf_counter()
        next(rounds)
        whole = time.perf_counter() - start
        taken.append(whole - (target.seconds + draft.seconds - before))
    rounds.close()
    return statistics.median(taken)
