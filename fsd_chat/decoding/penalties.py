"""Penalties and biases, per position and with the drafted tokens in view.

A drafted token must be penalised against the very context it would stand in, or P and Q are not the
distributions that a reply without drafting would have seen; so row i counts the drafts before i.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fsd_chat.decoding.settings import Sampling


class Penalties:
    """Which tokens the conversation and the reply hold so far, on one model's device.

    Repetition looks at prompt and reply (Keskar et al. 2019, eq. 13, as transformers has it),
    presence and frequency at the reply alone (as the OpenAI API defines them).
    """

    def __init__(
        self, sampling: Sampling, prompt: Sequence[int], vocabulary: int, device: torch.device
    ) -> None:
        self.sampling = sampling
        self._seen = torch.zeros(vocabulary, device=device)
        self._said = torch.zeros(vocabulary, device=device)
        self._bias = torch.zeros(vocabulary, device=device)
        for token, bias in sampling.logit_bias.items():
            if token < vocabulary:
                self._bias[token] = bias
        self._count(self._seen, prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        """`tokens` now belong to the reply."""
        self._count(self._seen, tokens)
        self._count(self._said, tokens)

    def _count(self, counts: Tensor, tokens: Sequence[int]) -> None:
        if not self.sampling.penalises:
            return
        ids = [token for token in tokens if token < counts.shape[0]]
        if ids:
            index = torch.tensor(ids, device=counts.device)
            counts.index_add_(0, index, torch.ones(len(ids), device=counts.device))

    def apply(self, logits: Tensor, drafts: Tensor) -> Tensor:
        """logits [n, V] whose row i follows the first i of drafts [≥ n - 1] → penalised [n, V]."""
        if not self.sampling.penalises:
            return logits
        drafted = torch.zeros(logits.shape, device=logits.device)
        if logits.shape[0] > 1:
            before = drafts[: logits.shape[0] - 1]
            drafted[1:].scatter_(-1, before[:, None], 1.0)
            drafted = drafted.cumsum(dim=0)
        return self._penalise(logits.float(), drafted)

    def apply_last(self, logits: Tensor, drafts: Tensor) -> Tensor:
        """logits [1, V] that follow all of drafts [k] → penalised [1, V]."""
        if not self.sampling.penalises:
            return logits
        drafted = torch.zeros(logits.shape[-1], device=logits.device)
        drafted.index_add_(0, drafts, torch.ones(drafts.shape[0], device=logits.device))
        return self._penalise(logits.float(), drafted[None])

    def _penalise(self, logits: Tensor, drafted: Tensor) -> Tensor:
        sampling = self.sampling
        if sampling.repetition_penalty != 1.0:
            weakened = torch.where(
                logits > 0,
                logits / sampling.repetition_penalty,
                logits * sampling.repetition_penalty,
            )
            logits = torch.where(self._seen + drafted > 0, weakened, logits)
        said = self._said + drafted
        logits = logits - sampling.presence_penalty * (said > 0)
        logits = logits - sampling.frequency_penalty * said
        return logits + self._bias
