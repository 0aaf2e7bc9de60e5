"""A transformers model behind the interface that the decoding loop sees."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


class DynamicCachedModel:
    """Any causal language model, with transformers' dynamic cache.

    No attention mask is passed: at batch 1 nothing is padded, and positions then follow from the
    length of the cache alone.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: int, context: int) -> None:
        """vocabulary: ids that are real tokens in every model of the pair; rows are cut to it,
        since models of a family pad their rows to different widths."""
        self._model = model
        self.vocabulary = vocabulary
        self.limit = context
        self.device: torch.device = model.device
        self._clear()
        self.can_roll_back = self._cache_can_be_cropped()

    def _clear(self) -> None:
        self._cache = DynamicCache(config=self._model.config)
        # Without this a sliding layer forgets at once what a rollback would bring back.
        self._cache.activate_past_recording()  # type: ignore[no-untyped-call]
        self._length = 0
        self._settled = 0

    @property
    def length(self) -> int:
        return self._length

    @torch.inference_mode()
    def _cache_can_be_cropped(self) -> bool:
        """Asked of a cache that has been used: recurrent layers show themselves only then."""
        self.forward(torch.zeros(1, dtype=torch.long, device=self.device), rows=1)
        croppable = bool(self._cache.is_croppable)
        self._clear()
        return croppable

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        """tokens [n] long → logits [rows, vocabulary] of the last `rows` of them."""
        output = self._model(
            input_ids=tokens[None], cache=self._cache, use_cache=True, logits_to_keep=rows
        )
        self._length += tokens.shape[0]
        logits: Tensor = output.logits[0, -rows:, : self.vocabulary]
        return logits

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens, or none where a window has slid past what they need."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll a cache of {self._length} tokens back to {length}")
        dropped = self._length - length
        if dropped and (not self.can_roll_back or self._has_forgotten(length)):
            self._clear()
            return
        if self._length and self.can_roll_back:
            # Also when nothing is dropped: sliding layers then let go of what left the window.
            self._cache.crop(-dropped)
        self._length = self._settled = length

    def _has_forgotten(self, length: int) -> bool:
        windows = [getattr(layer, "sliding_window", None) for layer in self._cache.layers]
        return length < self._settled and any(
            window is not None and self._settled >= window for window in windows
        )
