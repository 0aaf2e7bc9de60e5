"""Conversations as a draft is trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fsd_chat.distill.records import Conversation, Stored

MADE_UP_WEIGHT = 0.5
"""What a question that the target made up counts against an answer."""
SORTED_TOGETHER = 128


@dataclass(frozen=True)
class Batch:
    """b conversations, padded at their ends to n tokens."""

    tokens: Tensor
    """[b, n] long."""
    features: Tensor
    """[b, n, levels, hidden]."""
    log_partition: Tensor
    """[b, n, 2]."""
    written: Tensor
    """[b, n]: as `Conversation.written`; 0 for padding."""
    count: int
    """Tokens, padding left out."""

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.tokens.to(device),
            self.features.to(device),
            self.log_partition.to(device),
            self.written.to(device),
            self.count,
        )


def padded(conversations: Sequence[Conversation]) -> Batch:
    longest = max(len(one.tokens) for one in conversations)
    shape = (len(conversations), longest)
    first = conversations[0]
    batch = Batch(
        torch.zeros(shape, dtype=torch.long),
        torch.zeros(*shape, *first.features.shape[1:], dtype=first.features.dtype),
        torch.zeros(*shape, first.log_partition.shape[1]),
        torch.zeros(shape, dtype=torch.uint8),
        sum(len(one.tokens) for one in conversations),
    )
    for i, one in enumerate(conversations):
        length = len(one.tokens)
        batch.tokens[i, :length] = one.tokens
        batch.features[i, :length] = one.features
        batch.log_partition[i, :length] = one.log_partition
        batch.written[i, :length] = one.written
    return batch


def batches(conversations: Stored, size: int, generator: torch.Generator | None) -> Iterator[Batch]:
    """Batches of at most about `size` tokens, padding included: neighbours in length together.

    generator: shuffles; None keeps an order that is the same every time.
    """
    lengths = conversations.lengths
    order = list(range(len(lengths)))
    if generator is not None:
        order = torch.randperm(len(order), generator=generator).tolist()
    groups: list[list[int]] = []
    for start in range(0, len(order), SORTED_TOGETHER):
        group: list[int] = []
        for i in sorted(order[start : start + SORTED_TOGETHER], key=lengths.__getitem__):
            if group and (len(group) + 1) * lengths[i] > size:
                groups.append(group)
                group = []
            group.append(i)
        groups.append(group)
    if generator is not None:
        groups = [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    for group in groups:
        yield padded([conversations[i] for i in group])
