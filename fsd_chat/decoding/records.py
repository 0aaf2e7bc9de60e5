"""What a round leaves behind. The words are used here as everywhere in this project:

accepted
    a drafted token that the verification let through and that exact speculative decoding's coin
    would have let through as well;
fuzzy
    a drafted token that was let through although that coin fell against it: the price of the knob;
recovered
    the token that replaces the first rejected draft;
bonus
    the token drawn from the target after every draft was let through;
target
    a token drawn from the target where nothing had been drafted.

Output tokens are all of these together. A drafted token is *verified* if it stands before or at the
first rejection; later drafts were made in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fsd_chat.decoding.settings import Knob

Origin = Literal["accepted", "fuzzy", "recovered", "bonus", "target"]
Finish = Literal["end", "stop-string", "length", "context"]


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token and what was known at its position."""

    id: int
    origin: Origin
    target_probability: float
    """P(token) under the user's sampling settings."""
    draft_probability: float | None = None
    """Q(token), the probability it was drafted with; None where nothing was drafted."""
    divergence: float | None = None
    """D(P, Q) as compared with the threshold, in nats (tv: no unit); may be inf."""
    exact: float | None = None
    """Chance that exact speculative decoding accepts a draft here: the sum over min(P, Q)."""
    rejected: int | None = None
    """For a recovered token, the draft it replaces."""
    spectrum: tuple[float, ...] = ()
    """Every whole-row divergence at this position, in the order of `divergence.NAMES`."""


@dataclass(frozen=True, slots=True)
class Round:
    """One draft → verify → commit."""

    index: int
    """Index of the first of `tokens` in the reply, from 0."""
    tokens: tuple[Token, ...]
    drafted: int
    knob: Knob
    """As it was read when the round began; it governed all of `tokens`."""
    draft_s: float
    verify_s: float
    total_s: float
    finish: Finish | None = field(default=None)

    @property
    def accepted(self) -> int:
        return sum(token.origin in ("accepted", "fuzzy") for token in self.tokens)

    @property
    def verified(self) -> int:
        return sum(token.origin in ("accepted", "fuzzy", "recovered") for token in self.tokens)
