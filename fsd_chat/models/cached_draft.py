"""A draft made for its target, behind the interface that the decoding loop sees."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fsd_chat.models.cached import DynamicCachedModel, Reader
from fsd_chat.models.layers import Layers
from fsd_chat.models.small_draft import SmallDraft
from fsd_chat.models.static import StaticCachedModel


class Seer(Protocol):
    """A target that has read `length` tokens and tells what it had in mind (`TargetReader`)."""

    @property
    def length(self) -> int: ...

    def features(self, start: int, stop: int) -> Tensor: ...


class DraftReader(Reader):
    """Reads the target's features where there are any, and its own output in their stead where the
    target has not been yet: while it drafts. What was read so is given up at the next rollback, and
    read again with what the target had in mind; the loop need not know."""

    _draft: SmallDraft
    _target: Seer
    """Keeps the levels that the draft wants; its text is what is drafted for."""

    def _clear(self) -> None:
        super()._clear()
        self._informed = 0
        self._output = torch.zeros(1, self._draft.hidden, device=self._draft.model.device)

    def _read(self, tokens: Tensor, rows: int) -> Tensor:
        """As the model's own, but the rows are spread over the whole vocabulary."""
        start, count = self._length, tokens.shape[0]
        if not self._draft.levels:
            self._informed = start + count
            return self._rows(self._outputs(tokens, start, None), rows)
        # A token stands beside what the target had in mind before it.
        informed = min(count, max(0, self._target.length + 1 - start))
        outputs = []
        if informed:
            beside = self._draft.of_target(self._features(start, start + informed))
            outputs.append(self._outputs(tokens[:informed], start, beside))
            self._informed = start + informed
            self._output = outputs[-1][-1:]
        for i in range(informed, count):
            beside = self._draft.of_itself(self._output)
            self._output = self._outputs(tokens[i : i + 1], start + i, beside)
            outputs.append(self._output)
        return self._rows(torch.cat(outputs), rows)

    def _outputs(self, tokens: Tensor, start: int, beside: Tensor | None) -> Tensor:
        """tokens [n] from position `start` on, and what stands beside each [n, hidden] → outputs
        [n, hidden]."""
        raise NotImplementedError

    def _features(self, start: int, stop: int) -> Tensor:
        """Beside the tokens from `start` to `stop`; nothing stands beside the first of a text."""
        before = self._target.features(max(0, start - 1), stop - 1)
        before = before.to(self.device)
        return before if start else functional.pad(before, (0, 0, 0, 0, 1, 0))

    def _rows(self, outputs: Tensor, rows: int) -> Tensor:
        return self._draft.head.spread(self._known(outputs[-rows:]))

    def _known(self, outputs: Tensor) -> Tensor:
        """Logits of the ids that the draft's head knows."""
        logits: Tensor = self._draft.head(outputs)
        return logits

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens, or fewer: those that were read with the target's
        features."""
        super().rollback(min(length, self._informed))
        self._informed = min(self._informed, self._length)


class CachedDraft(DraftReader, DynamicCachedModel):
    """With transformers' layers and cache."""

    def __init__(self, draft: SmallDraft, vocabulary: int, context: int, target: Seer) -> None:
        self._draft, self._target = draft, target
        super().__init__(draft.model, vocabulary, context)

    def _outputs(self, tokens: Tensor, start: int, beside: Tensor | None) -> Tensor:
        beside = None if beside is None else beside[None]
        return self._draft.read(tokens[None], beside, cache=self._cache, use_cache=True)[0]


class StaticCachedDraft(DraftReader, StaticCachedModel):
    """With our own layers."""

    def __init__(
        self,
        draft: SmallDraft,
        layers: Layers,
        vocabulary: int,
        context: int,
        target: Seer,
    ) -> None:
        self._draft, self._target = draft, target
        super().__init__(draft.model, layers, vocabulary, context)

    def _outputs(self, tokens: Tensor, start: int, beside: Tensor | None) -> Tensor:
        return self._layers.run(self._draft.embed(tokens, beside), self._cache, start)[-1]

    def _known(self, outputs: Tensor) -> Tensor:
        return self._layers.head(outputs)
