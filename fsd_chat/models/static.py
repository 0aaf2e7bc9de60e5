"""A model whose layers are our own, behind the interface that the decoding loop sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from fsd_chat.models.cached import TargetReader
from fsd_chat.models.layers import Layers


class StaticCachedModel(TargetReader):
    """Keys and values lie in one buffer with room to spare, so going back costs nothing."""

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Layers,
        vocabulary: int,
        context: int,
        levels: Sequence[int] = (),
    ) -> None:
        """model: the one that `layers` are of; its embeddings and its head are used."""
        self._layers = layers
        self._cache = layers.empty_cache()
        self._embed: Any = model.get_input_embeddings()
        super().__init__(model, vocabulary, context, levels)

    def _read(self, tokens: Tensor, rows: int) -> Tensor:
        *states, output = self._layers.run(
            self._embed(tokens), self._cache, self._length, self._kept.levels
        )
        if states:
            self._kept.add(self._length, states)
        return self._layers.head(output[-rows:])
