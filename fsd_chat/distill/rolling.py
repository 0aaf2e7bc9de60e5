"""The cache of many conversations, of which one or another always begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""Columns by which a cache grows, and by which it is cut at its old end."""


class RollingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values in a buffer with room to spare: a step copies none of the old ones."""

    def __init__(self, keys: Tensor, values: Tensor, rows: int) -> None:
        """keys, values: [1, heads, n, size] that every row begins with."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._length = keys.shape[-2]
        self._buffers = (_roomy(keys, rows), _roomy(values, rows))
        self.device = keys.device
        self.is_initialized = True
        self._show()

    @property
    def rows(self) -> int:
        return self._buffers[0].shape[0]

    def place(self, row: int, end: int, keys: Tensor, values: Tensor) -> None:
        """What `row` begins with now, in the columns before `end`."""
        start = end - keys.shape[-2]
        self._buffers[0][row, :, start:end] = keys[0]
        self._buffers[1][row, :, start:end] = values[0]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self._length > self._buffers[0].shape[-2]:
            self._resize(self._length + ROOM, 0, start)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start : self._length] = states
        self._show()
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def forget(self, columns: int) -> None:
        """Drop the first `columns`."""
        start, self._length = columns, self._length - columns
        self._resize(self._length + ROOM, start, self._length)
        self._show()

    def keep_rows(self, rows: Sequence[int]) -> None:
        self._buffers = (self._buffers[0][list(rows)], self._buffers[1][list(rows)])
        self._show()

    def _resize(self, columns: int, start: int, count: int) -> None:
        old = self._buffers
        shapes = [(*buffer.shape[:2], columns, buffer.shape[3]) for buffer in old]
        self._buffers = (old[0].new_empty(shapes[0]), old[1].new_empty(shapes[1]))
        for buffer, before in zip(self._buffers, old, strict=True):
            buffer[:, :, :count] = before[:, :, start : start + count]

    def _show(self) -> None:
        self.keys = self._buffers[0][:, :, : self._length]
        self.values = self._buffers[1][:, :, : self._length]


def _roomy(states: Tensor, rows: int) -> Tensor:
    """[1, heads, n, size] → [rows, heads, n + ROOM, size], the new columns unset."""
    _, heads, columns, size = states.shape
    buffer = states.new_empty(rows, heads, columns + ROOM, size)
    buffer[:, :, :columns] = states
    return buffer
