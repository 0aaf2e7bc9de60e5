"""How far apart the target's and the draft's next-token distributions are.

P is the target's distribution, Q the draft's, M = (P + Q) / 2; logarithms are natural. Every
function takes log-probabilities [n, V] and returns one value per row [n]. Sums are written out:
library functions for KL differ in the order of their arguments, and that is how the authors'
released code came to compute something else than it names. Where a divergence is bounded its sum is
clamped to the bound: rounding must not put it above a threshold that means "anything goes".
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fsd_chat.decoding.distributions import nucleus
from fsd_chat.decoding.settings import Knob

Divergence = Callable[[Tensor, Tensor], Tensor]


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL(A‖B) = Σ A (log A - log B), with 0 log 0 = 0; inf where A has mass and B has none."""
    a = log_a.exp()
    # Where both logarithms are -inf their difference is NaN; where A is 0 the term is 0 anyway.
    terms = torch.where(a > 0, a * (log_a - log_b), 0.0)
    return terms.sum(dim=-1).clamp_min(0)


def log_mixture(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log M = log((P + Q) / 2)."""
    return torch.logaddexp(log_p, log_q) - math.log(2)


def js(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Jensen-Shannon: ½ KL(P‖M) + ½ KL(Q‖M), at most ln 2."""
    log_m = log_mixture(log_p, log_q)
    return ((kl(log_p, log_m) + kl(log_q, log_m)) / 2).clamp_max(math.log(2))


def kl_draft_target(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(Q‖P); `kl_div` in the released code, `kl` in the authors' TensorRT-LLM proposal."""
    return kl(log_q, log_p)


def kl_target_draft(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(P‖Q); `kl_div_reversed` in the released code, `reverse_kl` in that proposal."""
    return kl(log_p, log_q)


def tv(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Total variation: ½ Σ |P - Q| = 1 - Σ min(P, Q), at most 1."""
    return ((log_p.exp() - log_q.exp()).abs().sum(dim=-1) / 2).clamp_max(1)


def js_as_released(log_p: Tensor, log_q: Tensor) -> Tensor:
    """½ KL(M‖P) + ½ KL(M‖Q): what the released code computes under the name JS; unbounded."""
    log_m = log_mixture(log_p, log_q)
    return (kl(log_m, log_p) + kl(log_m, log_q)) / 2


WHOLE_ROW: dict[str, Divergence] = {
    "js": js,
    "kl-draft-target": kl_draft_target,
    "kl-target-draft": kl_target_draft,
    "tv": tv,
    "js-as-released": js_as_released,
}
NAMES = tuple(WHOLE_ROW)
LARGEST: dict[str, float] = {
    "js": math.log(2),
    "kl-draft-target": math.inf,
    "kl-target-draft": math.inf,
    "tv": 1.0,
    "js-as-released": math.inf,
}


def fold_top_k(log_p: Tensor, log_q: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens under P, and the rest of each row in one bucket: twice [n, V + 1].

    The tokens in the bucket have -inf in their own places.
    """
    if k >= log_p.shape[-1]:
        return log_p, log_q
    least = log_p.topk(k, dim=-1).values[:, -1:]
    likelier, tied = log_p > least, log_p == least
    # Of equally likely tokens the lowest ids come first; `topk` would take any of them.
    room = k - likelier.sum(dim=-1, keepdim=True)
    kept = likelier | (tied & (tied.cumsum(dim=-1) <= room))

    def fold(rows: Tensor) -> Tensor:
        rest = rows.masked_fill(kept, -torch.inf).logsumexp(dim=-1, keepdim=True)
        return torch.cat([rows.masked_fill(~kept, -torch.inf), rest], dim=-1)

    return fold(log_p), fold(log_q)


def restrict_top_p(log_p: Tensor, log_q: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Both rows restricted to the nucleus of P that holds `mass`, and renormalised: twice [n, V].

    A row of Q without any mass there stays all -inf.
    """
    outside = ~nucleus(log_p, mass)

    def renormalise(rows: Tensor) -> Tensor:
        inside = rows.masked_fill(outside, -torch.inf)
        total = inside.logsumexp(dim=-1, keepdim=True)
        return torch.where(total.isfinite(), inside - total, -torch.inf)

    return renormalise(log_p), renormalise(log_q)


def measure(log_p: Tensor, log_q: Tensor, knob: Knob, generator: torch.Generator) -> Tensor:
    """D(P, Q) as `knob` defines it, per row [n].

    `random` is the paper's control: a uniform number that knows nothing of P and Q.
    """
    divergence = WHOLE_ROW[knob.divergence]
    match knob.form:
        case "full":
            return divergence(log_p, log_q)
        case "top-k":
            return divergence(*fold_top_k(log_p, log_q, knob.form_k))
        case "top-p":
            log_p, log_q = restrict_top_p(log_p, log_q, knob.form_p)
            disjoint = log_q.amax(dim=-1) == -torch.inf
            return torch.where(disjoint, LARGEST[knob.divergence], divergence(log_p, log_q))
        case "random":
            return torch.rand(log_p.shape[0], device=log_p.device, generator=generator)
        case unknown:
            raise ValueError(f"no form of divergence is called {unknown!r}")


def spectrum(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Every whole-row divergence [n, 5], in the order of `WHOLE_ROW`, from what they share: the
    means under P and under Q of log P/M and of log Q/M. Rows are read a dozen times, not fifty."""
    # Of rows that sum to one softmax is exp, and takes half the time on a CPU.
    p, q = log_p.softmax(dim=-1), log_q.softmax(dim=-1)
    log_m = (p + q).div_(2).clamp_min_(_SMALLEST).log_()
    above, below = log_p - log_m, log_q - log_m
    p_above, p_below, q_above, q_below = (
        # 0 · -inf is NaN and counts as nothing; anything else times -inf is the infinity it is.
        (weights * log_ratio).nansum(dim=-1)
        for weights in (p, q)
        for log_ratio in (above, below)
    )
    shared = {
        "js": ((p_above + q_below) / 2).clamp_max(math.log(2)),
        "kl-draft-target": q_below - q_above,
        "kl-target-draft": p_above - p_below,
        "tv": ((p - q).abs_().sum(dim=-1) / 2).clamp_max(1),
        "js-as-released": -(p_above + p_below + q_above + q_below) / 4,
    }
    return torch.stack([shared[name] for name in WHOLE_ROW], dim=-1).clamp_min(0)


_SMALLEST = torch.finfo(torch.float32).tiny
