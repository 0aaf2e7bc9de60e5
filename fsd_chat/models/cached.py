"""A transformers model behind the interface that the decoding loop sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from fsd_chat.models.errors import ModelError

TRIAL = 4
"""Tokens read once more, in another way, to see whether a recurrent model takes text in pieces."""


class Reader:
    """What every cached model here has in common: a text that it has read, in tokens."""

    can_roll_back = True

    def __init__(self, model: PreTrainedModel, vocabulary: int, context: int) -> None:
        """vocabulary: ids that are real tokens in every model of the pair; rows are cut to it,
        since models of a family pad their rows to different widths."""
        self.vocabulary = vocabulary
        self.limit = context
        self.device: torch.device = model.device
        self._last_embedding = _embeddings(model) - 1
        self._length = 0
        self._clear()

    def _clear(self) -> None:
        """Nothing is read."""
        self._length = 0

    def _read(self, tokens: Tensor, rows: int) -> Tensor:
        """tokens [n], appended to what is read → logits [≥ rows, columns] of the last ones."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        return self._length

    @torch.inference_mode()
    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        """tokens [n] long → logits [rows, vocabulary] of the last `rows` of them."""
        # A draft may have no embedding for the last few ids of its target. What it then says is
        # judged like everything it says; an id out of range would end a CUDA process.
        logits = self._read(tokens.clamp(max=self._last_embedding), rows)
        self._length += tokens.shape[0]
        return logits[-rows:, : self.vocabulary]

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens, or none where a layer has forgotten what they need."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll a cache of {self._length} tokens back to {length}")
        self._go_back(length)

    def _go_back(self, length: int) -> None:
        self._length = length


class TargetReader(Reader):
    """A cached model that a draft may look into."""

    def __init__(
        self, model: PreTrainedModel, vocabulary: int, context: int, levels: Sequence[int]
    ) -> None:
        """levels: hidden states that are kept for a draft to read (`features`)."""
        self._kept = Features(levels)
        super().__init__(model, vocabulary, context)

    def features(self, start: int, stop: int) -> Tensor:
        """What the model had in mind after the tokens from `start` to `stop`, which are in the
        cache: [stop - start, levels, hidden]."""
        return self._kept.between(start, stop)


class DynamicCachedModel(TargetReader):
    """Any causal language model, with transformers' dynamic cache.

    No attention mask is passed: at batch 1 nothing is padded, and positions then follow from the
    length of the cache alone.
    """

    def __init__(
        self, model: PreTrainedModel, vocabulary: int, context: int, levels: Sequence[int] = ()
    ) -> None:
        """Raises ModelError for a model that keeps what it has read anywhere else than in the
        cache."""
        self._model = model
        self._habits = habits_of(model)
        self.can_roll_back = self._habits.can_roll_back
        super().__init__(model, vocabulary, context, levels)

    def _clear(self) -> None:
        super()._clear()
        self._cache = empty_cache(self._model)
        self._settled = 0

    def _read(self, tokens: Tensor, rows: int) -> Tensor:
        if self._length and not self._habits.reads_in_pieces:
            return torch.cat([self._read_piece(token[None], rows=1) for token in tokens])
        return self._read_piece(tokens, rows)

    def _read_piece(self, tokens: Tensor, rows: int) -> Tensor:
        if not self._kept.levels:
            return read(self._model, self._cache, tokens, rows)
        output = self._model(
            input_ids=tokens[None],
            cache=self._cache,
            use_cache=True,
            logits_to_keep=rows,
            output_hidden_states=True,
        )
        states = [output.hidden_states[level][0] for level in self._kept.levels]
        self._kept.add(self._length, states)
        logits: Tensor = output.logits[0, -rows:]
        return logits

    def _go_back(self, length: int) -> None:
        dropped = self._length - length
        if dropped and (not self.can_roll_back or self._has_forgotten(length)):
            self._clear()
            return
        if self._length and self.can_roll_back:
            # Also when nothing is dropped: layers then let go of what left their window.
            self._cache.crop(-dropped)
        self._length = self._settled = length

    def _has_forgotten(self, length: int) -> bool:
        """Whether a layer let go, at the last rollback, of what it held at `length` tokens."""
        return length < self._settled and any(
            isinstance(layer, LinearAttentionCacheLayerMixin)
            or self._settled >= getattr(layer, "sliding_window", self._settled + 1)
            for layer in self._cache.layers
        )


class Features:
    """Some hidden states of a text, in a buffer that grows with it."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = tuple(levels)
        self._buffer = torch.empty(0)

    def add(self, start: int, found: Sequence[Tensor]) -> None:
        """found: of every level [n, hidden], of n tokens from `start` on."""
        states = torch.stack(tuple(found), dim=1)
        stop = start + states.shape[0]
        if stop > self._buffer.shape[0]:
            grown = states.new_empty(2 * stop, *states.shape[1:])
            if start:
                grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:stop] = states

    def between(self, start: int, stop: int) -> Tensor:
        return self._buffer[start:stop]


@dataclass(frozen=True)
class Habits:
    """How a model's cache behaves, found by trying."""

    can_roll_back: bool
    reads_in_pieces: bool
    """Several tokens at once may follow what is in the cache. Some recurrent layers take their
    state into account only for a single token, and begin anew otherwise."""


_known: WeakKeyDictionary[PreTrainedModel, Habits] = WeakKeyDictionary()
"""Trying costs a few forwards: seconds, with a large model on a CPU."""


def habits_of(model: PreTrainedModel) -> Habits:
    """Try `model` out, once. Raises ModelError if it does not use the cache it is given."""
    if model not in _known:
        _known[model] = _try_out(model)
    return _known[model]


@torch.inference_mode()
def _try_out(model: PreTrainedModel) -> Habits:
    cache, text = empty_cache(model), torch.arange(1, 1 + 2 * TRIAL, device=model.device)
    try:
        read(model, cache, text[:TRIAL], rows=1)
    except (TypeError, AttributeError, NotImplementedError) as error:
        raise _keeps_its_own_state(model) from error
    if not any(map(_holds_something, cache.layers)):
        raise _keeps_its_own_state(model)
    # Asked of a cache that has been used: recurrent layers show themselves only then.
    if cache.is_croppable:
        return Habits(can_roll_back=True, reads_in_pieces=True)
    return Habits(can_roll_back=False, reads_in_pieces=_reads_in_pieces(model, text))


def _reads_in_pieces(model: PreTrainedModel, text: Tensor) -> bool:
    """Whether two halves of `text` say the same as all of it at once.

    Raises ModelError if not even its second half, token by token, does.
    """
    whole, halves, steps = (empty_cache(model) for _ in range(3))
    expected = read(model, whole, text, rows=TRIAL)
    for cache in (halves, steps):
        read(model, cache, text[:TRIAL], rows=1)
    stepwise = torch.cat([read(model, steps, token[None], rows=1) for token in text[TRIAL:]])
    if not alike(expected, stepwise):
        raise ModelError(
            "unsupported",
            f"a {type(model).__name__} gives other results with a cache than without, in this "
            "version of transformers; choose another model",
        )
    return alike(expected, read(model, halves, text[TRIAL:], rows=TRIAL))


def alike(expected: Tensor, found: Tensor) -> bool:
    """Whether rounding explains the difference; forgetting half the text makes far more."""
    tolerance = 1e-3 if expected.dtype == torch.float32 else 0.2
    expected, found = expected.float(), found.float()
    spread = expected - expected.mean(dim=-1, keepdim=True)
    return bool((found - expected).norm() <= tolerance * spread.norm())


def _keeps_its_own_state(model: PreTrainedModel) -> ModelError:
    return ModelError(
        "unsupported",
        f"a {type(model).__name__} does not keep what it has read in transformers' cache, so it "
        "cannot be used here; choose another model",
    )


def _embeddings(model: PreTrainedModel) -> int:
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def _holds_something(layer: object) -> bool:
    keys = getattr(layer, "keys", None)
    states = (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {}))
    return keys is not None or any(one is not None for kind in states for one in kind.values())


def empty_cache(model: PreTrainedModel) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    # Without this a sliding layer forgets at once what a rollback would bring back.
    cache.activate_past_recording()  # type: ignore[no-untyped-call]
    return cache


def read(model: PreTrainedModel, cache: DynamicCache, tokens: Tensor, rows: int) -> Tensor:
    """tokens [n] long, appended to the cache → logits [≤ rows, columns] of the last ones."""
    output = model(input_ids=tokens[None], cache=cache, use_cache=True, logits_to_keep=rows)
    logits: Tensor = output.logits[0, -rows:]
    return logits
