"""How fast the same answers are written in several ways, side by side in one process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from fsd_chat.decoding.distributions import raw_log_probabilities
from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.lookahead import Lookahead
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping

LONGEST = 96
"""Tokens of an answer."""
CHUNK = 256
"""Tokens of a prompt that are read at once."""


@dataclass(frozen=True)
class Rounds:
    """What rounds of speculative decoding did, all together."""

    count: int = 0
    accepted: int = 0
    verified: int = 0
    fuzzy: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True)
class Taken:
    """One answer."""

    tokens: Sequence[int]
    first_s: float
    """From the prompt to the first token or round."""
    seconds: float
    """Of all that was written after it,"""
    counted: int
    """and how many tokens that is."""
    rounds: Rounds

    @property
    def rate(self) -> float:
        return self.counted / self.seconds if self.counted else math.nan


class Writes(Protocol):
    """One way to write an answer."""

    def __call__(self, prompt: Sequence[int], seed: int) -> Taken: ...


@dataclass(frozen=True)
class Way:
    """What one way came to, over several answers."""

    name: str
    temperature: float
    tokens: int
    tokens_per_s: float
    """Decoding alone; the median over answers."""
    spread: float
    """Half of what lies between the quartiles of tokens per second, in parts of the median."""
    ratio: float
    """Of tokens per second to those of the first way: the median over answers of this run."""
    first_s: float
    """Median time to the first token or round."""
    tokens_per_round: float | None
    acceptance: float | None
    fuzzy: float | None
    """Part of the tokens that only the threshold let stay."""
    perplexity: float
    """Of the answers under the target at temperature 1: what they cost beside time."""
    draft_s: float
    """Of a round, as the next two: the drafts, the verification, and all of it."""
    verify_s: float
    round_s: float

    @property
    def outside(self) -> float | None:
        """Part of a round that is neither model's; None where that is not known."""
        return 1 - (self.draft_s + self.verify_s) / self.round_s if self.round_s else None


def read(models: Sequence[CachedModel | None], tokens: Sequence[int]) -> None:
    """Let every model that there is read up to `tokens`."""
    for model in models:
        if model is not None:
            for _ in prefill(model, tokens, chunk=CHUNK):
                pass


@dataclass(frozen=True)
class Ours:
    """The decoding loop of this program."""

    target: CachedModel
    draft: CachedModel | None
    knob: Knob
    sampling: Sampling
    end_ids: frozenset[int]
    learned: dict[str, Lookahead] = field(default_factory=dict)

    def __call__(self, prompt: Sequence[int], seed: int) -> Taken:
        text = list(prompt)
        for model in (self.target, self.draft):
            if model is not None:
                model.rollback(0)
        start = time.perf_counter()
        read((self.target, self.draft), text[:-1])
        reply = Reply(
            knob=LiveKnob(self.knob),
            sampling=self.sampling,
            stopping=Stopping(self.end_ids, LONGEST),
            seed=seed,
            learned=self.learned,
        )
        drafter = None if self.draft is None else ModelDrafter(self.draft)
        rounds, times = [], []
        for one in decode(self.target, drafter, text, reply):
            rounds.append(one)
            times.append(time.perf_counter())
        later = rounds[1:]
        return Taken(
            tokens=text[len(prompt) :],
            first_s=times[0] - start,
            seconds=times[-1] - times[0],
            counted=sum(len(one.tokens) for one in later),
            rounds=Rounds(
                count=len(later),
                accepted=sum(one.accepted for one in later),
                verified=sum(one.verified for one in later),
                fuzzy=sum(token.origin == "fuzzy" for one in later for token in one.tokens),
                draft_s=sum(one.draft_s for one in later),
                verify_s=sum(one.verify_s for one in later),
            ),
        )


def side_by_side(
    ways: Mapping[str, Writes],
    prompts: Sequence[Sequence[int]],
    temperature: float,
    judge: CachedModel,
) -> list[Way]:
    """Every prompt in every way, one after the other, before the next prompt. judge: the target,
    which says how likely it finds the answers."""
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    nats = dict.fromkeys(ways, 0.0)
    for number, prompt in enumerate([prompts[0], *prompts]):
        for name, write in ways.items():
            one = write(prompt, number)
            if number:
                # The first was for warming up.
                taken[name].append(one)
                nats[name] += _nats(judge, prompt, one.tokens)
    first = [one.rate for one in next(iter(taken.values()))]
    return [_way(name, temperature, found, first, nats[name]) for name, found in taken.items()]


def _nats(target: CachedModel, prompt: Sequence[int], said: Sequence[int]) -> float:
    """-Σ log P of the tokens that were said."""
    target.rollback(0)
    tokens = torch.tensor([*prompt, *said], device=target.device)
    rows = raw_log_probabilities(target.forward(tokens[:-1], rows=len(said)))
    return -float(rows.gather(-1, tokens[len(prompt) :, None]).sum())


def _way(
    name: str, temperature: float, found: Sequence[Taken], first: Sequence[float], nats: float
) -> Way:
    tokens = sum(len(one.tokens) for one in found)
    whole = [one.rounds for one in found]
    rounds, verified = sum(one.count for one in whole), sum(one.verified for one in whole)
    rates = [one.rate for one in found]
    middle = statistics.median(rates)
    low, _, high = statistics.quantiles(rates, n=4) if len(rates) > 1 else [middle] * 3
    each = max(1, rounds)
    return Way(
        name=name,
        temperature=temperature,
        tokens=tokens,
        tokens_per_s=middle,
        spread=(high - low) / 2 / middle,
        ratio=statistics.median(rate / other for rate, other in zip(rates, first, strict=True)),
        first_s=statistics.median(one.first_s for one in found),
        tokens_per_round=sum(one.counted for one in found) / rounds if rounds else None,
        acceptance=sum(one.accepted for one in whole) / verified if verified else None,
        fuzzy=sum(one.fuzzy for one in whole) / tokens if verified else None,
        perplexity=math.exp(nats / tokens),
        draft_s=sum(one.draft_s for one in whole) / each,
        verify_s=sum(one.verify_s for one in whole) / each,
        round_s=sum(one.seconds for one in found) / each if rounds else 0.0,
    )
