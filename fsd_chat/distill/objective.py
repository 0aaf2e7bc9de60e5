"""What a draft is trained for: to be accepted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    """How a draft's rows stand to the target's, position by position [n]."""

    overlap: Tensor
    """Σ min(P, Q): the chance that exact speculative decoding accepts (Leviathan et al. 2023,
    Cor. 3.6)."""
    cross_entropy: Tensor
    """-Σ P log Q over the ids that the draft knows, at temperature 1."""
    same_choice: Tensor
    """Whether both find the same id likeliest; bool."""

    def loss(self, overlap_weight: float = 0.5) -> Tensor:
        """Cross-entropy, which teaches every id, and -log overlap, which is what counts [n]."""
        return self.cross_entropy - overlap_weight * self.overlap.clamp_min(1e-6).log()


def agreement(
    target: Tensor, log_partition: Tensor, draft: Tensor, temperature: float
) -> Agreement:
    """target, draft: logits over the ids that the draft knows [n, m], float32.

    log_partition: the target's log Σ exp(logits) over all ids at temperature 1, and its log Σ
    exp(logits / temperature) [n, 2]; what it gives to ids unknown to the draft is lost to both.
    """
    p = (target - log_partition[:, :1]).exp()
    log_q = draft.log_softmax(dim=-1)
    cross_entropy = -(p * log_q).sum(dim=-1)
    p_at = (target / temperature - log_partition[:, 1:]).exp()
    q_at = (draft / temperature).softmax(dim=-1)
    overlap = torch.minimum(p_at, q_at).sum(dim=-1)
    return Agreement(overlap, cross_entropy, target.argmax(dim=-1) == draft.argmax(dim=-1))
