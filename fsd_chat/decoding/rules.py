"""The rules: when a drafted token may stay, and what replaces it when it may not.

A rule is two small functions. `accept` gives every drafted token the probability that it stays;
`replace` gives, at the first rejection, the weights that its replacement is drawn from. To add a
rule, write the two and enter them in `RULES`.

P is the target's distribution and Q the one the token was drafted from, both under the user's
sampling settings; x is the drafted token. T is the knob, a scalar tensor. With a greedy draft Q is
a point mass, and every formula holds as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Evidence:
    """What is known of k drafted tokens once the target has scored them."""

    target: Tensor
    """P [k, V]."""
    draft: Tensor
    """Q [k, V]."""
    tokens: Tensor
    """x [k]."""
    divergence: Tensor
    """D(P, Q) [k]."""

    @cached_property
    def target_probability(self) -> Tensor:
        """P(x) [k]."""
        return self.target.gather(-1, self.tokens[:, None])[:, 0]

    @cached_property
    def draft_probability(self) -> Tensor:
        """Q(x) [k]."""
        return self.draft.gather(-1, self.tokens[:, None])[:, 0]

    def row(self, index: Tensor) -> Evidence:
        """The evidence at one position, `index` [1], with k = 1."""
        return Evidence(
            self.target.index_select(0, index),
            self.draft.index_select(0, index),
            self.tokens.index_select(0, index),
            self.divergence.index_select(0, index),
        )


Accept = Callable[[Evidence, Tensor], Tensor]
"""evidence, T → chance that each drafted token stays [k]."""
Replace = Callable[[Evidence, Tensor], Tensor]
"""evidence, T → weights of the replacement's distribution, not normalised [k, V]."""


@dataclass(frozen=True)
class Rule:
    accept: Accept
    replace: Replace


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """min(1, a / b); 0 where both are 0, as for a token that neither distribution admits."""
    return (numerator / denominator).nan_to_num_(nan=0.0, posinf=1.0).clamp_max_(1)


def coin(evidence: Evidence, T: Tensor | None = None) -> Tensor:
    """Exact speculative decoding: x stays with probability min(1, P(x) / Q(x)).

    Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
    """
    return ratio(evidence.target_probability, evidence.draft_probability)


def residual(evidence: Evidence, T: Tensor | None = None) -> Tensor:
    """(P - Q)₊, which makes up exactly for what the coin lets through too often."""
    return (evidence.target - evidence.draft).clamp_min(0)


def within(evidence: Evidence, T: Tensor) -> Tensor:
    """D(P, Q) ≤ T [k]; never at T = 0, which is the exact end of the knob."""
    return (evidence.divergence <= T) & (T > 0)


def fuzzy_coin(evidence: Evidence, T: Tensor) -> Tensor:
    """Rule `fsd`: x stays if the coin says so, or if D(P, Q) ≤ T.

    The authors' TensorRT-LLM proposal (PR #12853); "r-fuzzy" of Xia et al. 2026 (arXiv
    2607.08690); both compare with <. For drafts sampled from Q the law of a position is Q where
    D ≤ T and P elsewhere.
    """
    return torch.where(within(evidence, T), 1.0, coin(evidence))


def threshold_alone(evidence: Evidence, T: Tensor) -> Tensor:
    """Rule `fsd-paper`: x stays iff D(P, Q) ≤ T, whatever x is (arXiv 2502.20704)."""
    return (evidence.divergence <= T).float()


def target_afresh(evidence: Evidence, T: Tensor) -> Tensor:
    """P itself: the rejected token had no say in the rejection, so nothing needs making up for."""
    return evidence.target


def lenient(evidence: Evidence, T: Tensor) -> Tensor:
    """x stays with min(1, P(x) / ((1 - α) Q(x))), α = T in [0, 1): "lenience" of Leviathan et al.
    2023, appendix A.5, with 1 - α for their l. α = 0 is exact."""
    return ratio(evidence.target_probability, (1 - T).clamp_min(0) * evidence.draft_probability)


def typical(evidence: Evidence, T: Tensor) -> Tensor:
    """x stays iff P(x) > min(ε, √ε · exp(-H(P))), with ε = 1 - T in [0, 1].

    The typical acceptance of Medusa (Cai et al. 2024, arXiv 2401.10774v3, sec. 2.3.1), with δ = √ε
    as in their experiments (sec. 3.3.2). Their ε tightens as it rises; ours is turned round so that
    T rising always means looser. Their first token of each step is greedy and always stays; here a
    rejected draft is replaced from P.
    """
    epsilon = (1 - T).clamp(0, 1)
    entropy = torch.special.entr(evidence.target).sum(dim=-1)
    bar = torch.minimum(epsilon, epsilon.sqrt() * torch.exp(-entropy))
    return (evidence.target_probability > bar).float()


def raised(evidence: Evidence, delta: Tensor) -> Tensor:
    """CACTUS's stand-in for P(x): h = min(1, P(x) + √(2 δ P(x) (1 - P(x)))) [k].

    The most that P(x) can be raised while KL to P stays within δ, to second order (Hao and Mou
    2026, arXiv 2604.04987, corollary 5).
    """
    p = evidence.target_probability
    # Even an infinite δ cannot raise what is certain or impossible: 0 · ∞ counts as 0 here.
    variance = (2 * delta * p * (1 - p)).nan_to_num(nan=0.0).clamp_min(0)
    return (p + variance.sqrt()).clamp_max(1)


def cactus(evidence: Evidence, T: Tensor) -> Tensor:
    """x stays with min(1, h / Q(x)), δ = T. δ = 0 is exact."""
    return ratio(raised(evidence, T), evidence.draft_probability)


def cactus_residual(evidence: Evidence, T: Tensor) -> Tensor:
    """(H - Q)₊, where H is P with h at x and the rest scaled by (1 - h) / (1 - P(x))."""
    h = raised(evidence, T)
    p = evidence.target_probability
    scale = torch.where(p < 1, (1 - h) / (1 - p), 0.0)
    moved = (evidence.target * scale[:, None]).scatter(-1, evidence.tokens[:, None], h[:, None])
    return (moved - evidence.draft).clamp_min(0)


def cascade(evidence: Evidence, alpha: Tensor) -> Tensor:
    """π = Q · 1_A + η P, A = {v: P(v) ≥ (1 - α) max P}, η = 1 - Q(A) [k, V].

    The token-specific speculative cascade of Narasimhan et al. 2025 (ICLR, arXiv 2405.19261) that
    they call TokenV3. Not exact at α = 0: the draft is then still trusted on the likeliest token.
    """
    P, Q = evidence.target, evidence.draft
    bar = (1 - alpha) * P.amax(dim=-1, keepdim=True)
    trusted = torch.where(bar <= P, Q, 0.0)
    return trusted + (1 - trusted.sum(dim=-1, keepdim=True)).clamp_min(0) * P


def cascade_token(evidence: Evidence, T: Tensor) -> Tensor:
    """Speculative decoding against π instead of P, α = T in [0, 1]: min(1, π(x) / Q(x))."""
    pi = cascade(evidence, T).gather(-1, evidence.tokens[:, None])[:, 0]
    return ratio(pi, evidence.draft_probability)


def cascade_residual(evidence: Evidence, T: Tensor) -> Tensor:
    """(π - Q)₊."""
    return (cascade(evidence, T) - evidence.draft).clamp_min(0)


EXACT = Rule(coin, residual)
RULES: dict[str, Rule] = {
    "exact": EXACT,
    "fsd": Rule(fuzzy_coin, residual),
    "fsd-paper": Rule(threshold_alone, target_afresh),
    "lenient": Rule(lenient, residual),
    "typical": Rule(typical, target_afresh),
    "cactus": Rule(cactus, cactus_residual),
    "cascade-token": Rule(cascade_token, cascade_residual),
}
TARGET_ONLY = "target-only"
"""Not in `RULES`: nothing is drafted, so nothing is judged."""
