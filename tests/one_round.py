"""One verification with everything about it in hand: the rows, the drafts, and the randomness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from fsd_chat.decoding import verification
from fsd_chat.decoding.distributions import (
    filtered_logits,
    probabilities,
    raw_log_probabilities,
)
from fsd_chat.decoding.drafting import Proposal
from fsd_chat.decoding.records import Token
from fsd_chat.decoding.settings import Knob, Sampling
from fsd_chat.decoding.verification import TargetRows


def proposal_of(
    logits: Tensor, tokens: Sequence[int], sampling: Sampling, greedy: bool = False
) -> Proposal:
    """Drafted `tokens` with Q as `sampling` makes it from logits [k, V]."""
    filtered = filtered_logits(logits, sampling)
    return Proposal(
        torch.tensor(tokens),
        probabilities(filtered, 0.0 if greedy else sampling.temperature),
        raw_log_probabilities(logits),
        (filtered,),
        logits.amax(dim=-1).isfinite(),
    )


@dataclass(frozen=True)
class OneRound:
    target_logits: Tensor
    """[k + 1, V]."""
    proposal: Proposal | None
    knob: Knob
    sampling: Sampling
    exact_positions: int = 0

    @property
    def rows(self) -> TargetRows:
        return TargetRows.of(self.target_logits, self.target_logits, self.sampling)

    def verify(self, seed: int = 0) -> tuple[Token, ...]:
        return verification.verify(
            self.rows,
            self.proposal,
            self.knob,
            torch.tensor(self.knob.threshold),
            self.exact_positions,
            torch.Generator().manual_seed(seed),
        )

    def with_coins(self, coins: Sequence[float]) -> tuple[tuple[Token, ...], Tensor]:
        """The tokens when the uniform numbers fall as given, and the distribution that the last
        of them was then drawn from [V]."""
        drawn_from = []

        def most_likely(weights: Tensor, generator: torch.Generator) -> Tensor:
            drawn_from.append(weights[0].double() / weights[0].double().sum())
            return weights.argmax(dim=-1)

        def given(*size: int, **keywords: object) -> Tensor:
            return torch.tensor(coins)

        with (
            patch.object(verification, "sample", most_likely),
            patch.object(verification.torch, "rand", given),
        ):
            tokens = self.verify()
        return tokens, drawn_from[0]
