"""From logits to probabilities, and from probabilities to tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fsd_chat.decoding.settings import Sampling


def raw_log_probabilities(logits: Tensor) -> Tensor:
    """logits [n, V] → log-softmax in float32 [n, V], before any sampling setting."""
    return torch.log_softmax(logits.float(), dim=-1)


def filtered_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """logits [n, V] → logits over the temperature, -inf outside top-k, top-p and min-p [n, V].

    The filters act in that order, each on what the ones before it left. Temperature 0 leaves the
    logits unscaled: which tokens the filters admit is then decided at temperature 1. A row with NaN
    or +inf in it has them still.
    """
    kept = logits.float()
    if sampling.temperature not in (0.0, 1.0):
        kept = kept / max(sampling.temperature, _COLDEST)
    if 0 < sampling.top_k < kept.shape[-1]:
        least = kept.topk(sampling.top_k, dim=-1).values[:, -1:]
        kept = kept.masked_fill(kept < least, -torch.inf)
    if sampling.top_p < 1:
        kept = kept.masked_fill(~nucleus(kept, sampling.top_p), -torch.inf)
    if sampling.min_p > 0:
        probabilities = kept.softmax(dim=-1)
        least = sampling.min_p * probabilities.amax(dim=-1, keepdim=True)
        kept = kept.masked_fill(probabilities < least, -torch.inf)
    return kept


_COLDEST = 1e-30
"""No logit overflows that is divided by this. What a lower temperature could tell apart, float32
cannot."""


def nucleus(logits: Tensor, mass: float) -> Tensor:
    """logits [n, V] → True for the fewest likeliest tokens that together hold `mass` [n, V]."""
    ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    # `before < mass` would leave NaN out, and hide that a row is broken.
    kept = ~(before >= mass)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter(-1, order, kept)


def probabilities(filtered: Tensor, temperature: float) -> Tensor:
    """filtered logits [n, V] → the distribution tokens are drawn from [n, V].

    At temperature 0 it is all on the likeliest token, found among the logits themselves: softmax
    in float32 can turn two different logits into equal probabilities.
    """
    if temperature > 0:
        return filtered.softmax(dim=-1)
    return point_masses(filtered.argmax(dim=-1), filtered.shape[-1])


def point_masses(tokens: Tensor, vocabulary: int) -> Tensor:
    """tokens [n] → rows with all their mass on them [n, vocabulary], float32."""
    rows = torch.zeros(tokens.shape[0], vocabulary, device=tokens.device)
    return rows.scatter_(-1, tokens[:, None], 1.0)


def sample(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Non-negative weights [n, V], not all zero in a row → one token per row [n].

    By the inverse of the distribution function, in float64: a row of 150,000 sums exactly enough,
    a row takes one random number instead of one for every id, and no word comes from the device.
    First among stretches of a row, then within one: the function itself is needed only there.
    """
    rows, vocabulary = weights.shape
    if vocabulary % _STRETCH:
        weights = functional.pad(weights, (0, -vocabulary % _STRETCH))
    stretches = weights.view(rows, -1, _STRETCH)
    sums = stretches.sum(dim=-1).double()
    below = sums.cumsum(dim=-1)
    u = torch.rand((rows, 1), dtype=torch.float64, device=weights.device, generator=generator)
    point = u * below[:, -1:]
    chosen = _where(below, point)
    rest = point - (below - sums).gather(-1, chosen)
    inside = stretches.gather(1, chosen[..., None].expand(-1, -1, _STRETCH))[:, 0]
    # Rounding may take it below 0, where a token without any weight would be found.
    found = _where(inside.cumsum(dim=-1, dtype=torch.float64), rest.clamp_min_(0))
    return (chosen * _STRETCH + found)[:, 0].clamp_max_(vocabulary - 1)


_STRETCH = 256
_BELOW_ONE = 1 - 2.0**-52


def _where(below: Tensor, point: Tensor) -> Tensor:
    """below [n, m], sums of weights up to each; point [n, 1] → whose weight covers it [n, 1]."""
    # The point may round up to the sum of all, which lies behind the last one with any weight.
    point = torch.minimum(point, below[:, -1:] * _BELOW_ONE)
    # A row with NaN in it, whose token nobody will keep, must still give an id that there is.
    return torch.searchsorted(below, point, right=True).clamp_max_(below.shape[-1] - 1)
