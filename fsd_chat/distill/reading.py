"""What a draft says along conversations, as deep as it will be asked to draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

from fsd_chat.distill.batches import Batch
from fsd_chat.distill.objective import Agreement, agreement
from fsd_chat.models.small_draft import SmallDraft

UNSEEN = -1e4
"""Not -inf: softmax over a row without any key would be NaN. float16 holds it too."""


@dataclass(frozen=True)
class Step:
    """The draft's j-th step into the unknown, from every position at once."""

    agreement: Agreement
    written: Tensor
    """[n] of the positions that count, as `Conversation.written`."""


def read_along(
    draft: SmallDraft, batch: Batch, depth: int, temperature: float, answers_only: bool
) -> list[Step]:
    """Drafting from every position at once, `depth` of the conversation's own tokens each.

    In step j the draft stands j positions after the last one that the target has been asked about:
    it sees what it read with the target's features up to there, and its own outputs since. That is
    how it will draft, so it is trained so (EAGLE-3's "training-time test", section 3.2). A draft
    without features reads every position alike and has one step.
    """
    tokens, length = batch.tokens, batch.tokens.shape[1]
    position = torch.arange(length, device=tokens.device)
    last_level = batch.features[:, :, -1]
    cache = DynamicCache()
    steps: list[Step] = []
    beside: Tensor | None = None
    if draft.levels:
        before = functional.pad(batch.features[:, :-1], (0, 0, 0, 0, 1, 0))
        beside = draft.of_target(before)
    for step in range(depth if draft.levels else 1):
        output = draft.read(
            tokens,
            beside,
            cache=cache,
            use_cache=True,
            position_ids=position[None].expand_as(tokens),
            attention_mask=_mask(position, step, output_dtype(draft)),
        )
        counts = (batch.written == 2) if answers_only else (batch.written > 0)
        counts = counts & (position >= step)
        with torch.no_grad():
            target = draft.head(last_level[counts].to(draft.head.weight.dtype)).float()
        found = agreement(
            target, batch.log_partition[counts], draft.head(output[counts]).float(), temperature
        )
        steps.append(Step(found, batch.written[counts]))
        if draft.levels:
            beside = functional.pad(draft.of_itself(output)[:, :-1], (0, 0, 1, 0))
    return steps


def output_dtype(draft: SmallDraft) -> torch.dtype:
    if torch.is_autocast_enabled(draft.head.weight.device.type):
        return torch.get_autocast_dtype(draft.head.weight.device.type)
    return draft.model.dtype


def _mask(position: Tensor, step: int, dtype: torch.dtype) -> Tensor:
    """[1, 1, n, (step + 1) n], added to the scores. The cache holds the positions once for every
    step so far: of the first all up to where the target was asked, of each later one the one
    position on the way from there."""
    query, key = position[:, None], position[None]
    seen = [key <= query - step]
    seen += [key == query - (step - j) for j in range(1, step + 1)]
    allowed = torch.cat(seen, dim=1)
    mask = torch.zeros(allowed.shape, dtype=dtype, device=position.device)
    return mask.masked_fill(~allowed, UNSEEN)[None, None]
