"""What the loop needs of a language model, whatever runs it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class CachedModel(Protocol):
    """A causal language model with a cache that grows by `forward` and shrinks by `rollback`."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    @property
    def limit(self) -> int:
        """The most tokens the model can hold."""

    @property
    def vocabulary(self) -> int:
        """Columns of the rows it returns; ids from 0 to this are real tokens, none is padding."""

    @property
    def device(self) -> torch.device: ...

    @property
    def can_roll_back(self) -> bool:
        """False for a recurrent state, which cannot forget: such a model can only go forward."""

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        """tokens [n] long, appended to the cache → logits [rows, vocabulary] of the last ones."""

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens, at most the present length.

        Exact back to the length that the last rollback left. Further back a sliding window may have
        forgotten what it would need; the model then keeps fewer, and `length` tells how many.
        """


class NonFiniteTarget(ArithmeticError):
    """The target gave a row that is no distribution; the reply cannot go on."""
