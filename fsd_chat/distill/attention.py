"""One query of many conversations, without copying what their heads share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

SHARED = "sdpa_shared_heads"
Block = tuple[int, int, int]
"""Rows from the first up to the second number, and the first column that any of them looks at."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    blocks: Sequence[Block] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' sdpa attention, but query heads that share keys stand side by side, as queries
    at one position would: for one position that is the same, and nothing is repeated per head.

    query [b, heads, n, size]; key, value [b, shared heads, columns, size] → [b, n, heads, size]
    blocks: all rows, so that what no row of a block looks at is not read for it.
    """
    batch, heads, count, size = query.shape
    if count > 1 or (attention_mask is not None and attention_mask.shape[1] > 1):
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **options
        )
        return output, None
    folded = query.reshape(batch, key.shape[1], -1, size)
    found = torch.empty_like(folded)
    mask = attention_mask
    for first, last, column in blocks or [(0, batch, 0)]:
        found[first:last] = scaled_dot_product_attention(
            folded[first:last],
            key[first:last, :, column:],
            value[first:last, :, column:],
            attn_mask=None if mask is None else mask[first:last, ..., column:],
            scale=scaling,
        )
    return found.reshape(batch, 1, heads, -1), None


AttentionInterface.register(SHARED, attend)
AttentionMaskInterface.register(SHARED, sdpa_mask)


def share_heads(model: PreTrainedModel) -> None:
    """From now on `model` attends so, if sdpa is what it uses."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(SHARED)


def share_no_heads(model: PreTrainedModel) -> None:
    """Undo `share_heads`."""
    if model.config._attn_implementation == SHARED:
        model.set_attn_implementation("sdpa")
