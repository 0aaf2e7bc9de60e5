"""The target writes both sides of conversations, many at once.

Begun at the template's user turn, a chat model writes the question too (Xu et al. 2024, "Magpie"),
so no data set is needed. Every row of the batch is a conversation of its own: when one ends,
another begins in its place at the next step, and the batch stays full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from fsd_chat.distill.attention import SHARED, Block
from fsd_chat.distill.records import Conversation
from fsd_chat.distill.rolling import ROOM, RollingLayer
from fsd_chat.distill.turns import Turns

Side = Literal["user", "assistant"]
ROWS_IN_CACHE = 4
"""Rows over the vocabulary that a processor works on at once: what is touched ten times stays near.
"""


@dataclass(frozen=True)
class Kind:
    """A conversation's size."""

    turns: int = 1
    """Questions."""
    answer_tokens: int = 256
    """At most, in each answer; it is cut there."""


@dataclass(frozen=True)
class Style:
    """How the target is sampled, and how long it may write."""

    temperatures: tuple[float, ...] = (0.0, 0.3, 0.7, 0.7, 0.7, 1.0)
    """Answers are sampled at these, equally often."""
    question_temperature: float = 0.9
    question_tokens: int = 96
    kinds: tuple[Kind, ...] = (Kind(1, 96), Kind(1, 160), Kind(1, 256), Kind(2, 96))
    """Written in as many rows each. Neighbours in the batch are of a kind and about as long, so
    that attention reads no column for the sake of one long row."""

    @property
    def longest(self) -> int:
        """Tokens of the longest conversation, what the template puts around it left out."""
        return max(kind.turns * (self.question_tokens + kind.answer_tokens) for kind in self.kinds)


@dataclass
class _Row:
    """One conversation while it is written."""

    start: int
    """Column of the cache where it begins."""
    temperature: float
    kind: Kind
    turns_left: int
    forced: deque[int]
    """Ids that come next whatever the target says: the template's, and a given question's."""
    side: Side = "user"
    said: int = 0
    """Tokens of the present turn."""
    tokens: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)
    log_partition: list[Tensor] = field(default_factory=list)


class Writer:
    """Writes conversations with `model`; yields each when it ends.

    feature_layers: of which layers the output is recorded, as indices into transformers' hidden
    states (0 the embedding, the last after the final norm).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        turns: Turns,
        feature_layers: Sequence[int],
        style: Style,
        batch: int,
        seed: int,
        questions: Iterator[Sequence[int]] | None = None,
        partition_temperatures: Sequence[float] = (1.0,),
    ) -> None:
        """questions: ids to answer, one each; without them the target asks too."""
        self._model = model
        self._turns = turns
        self._levels = tuple(feature_layers)
        self._style = style
        self._questions = questions
        self._temperatures = torch.tensor(partition_temperatures, device=model.device)
        self._generator = torch.Generator(model.device).manual_seed(seed)
        self._choices = torch.Generator().manual_seed(seed)
        self._opening = _read_opening(model, turns.opening, feature_layers, self._temperatures)
        self._layers = [
            RollingLayer(layer.keys, layer.values, batch) for layer in self._opening.cache.layers
        ]
        self._cache: Any = Cache(layers=list(self._layers))
        self._length = len(turns.opening)
        self._rows: list[_Row] = []
        first = []
        for i in range(batch):
            if (begun := self._begin(i)) is not None:
                self._rows.append(begun[0])
                first.append(begun[1])
        self._leave(range(len(self._rows), batch))
        self._next = torch.tensor(first)

    def _begin(self, place: int) -> tuple[_Row, int] | None:
        """A conversation in row `place`, and its first token; None if nothing is left to ask."""
        style, opening = self._style, self._opening
        asked = None if self._questions is None else next(self._questions, None)
        if self._questions is not None and asked is None:
            return None
        length = len(opening.tokens)
        kind = style.kinds[place * len(style.kinds) // self._layers[0].rows]
        for layer, read in zip(self._layers, opening.cache.layers, strict=True):
            layer.place(place, self._length, read.keys, read.values)
        row = _Row(
            start=self._length - length,
            temperature=self._choose(style.temperatures),
            kind=kind,
            turns_left=1 if asked is not None else kind.turns,
            forced=deque(asked or ()),
            tokens=opening.tokens.tolist(),
            written=[0] * (length - 1),
            features=list(opening.features),
            log_partition=list(opening.log_partition),
        )
        if asked is not None:
            self._answer(row)
            row.written.append(0)
            return row, row.forced.popleft()
        weights = (opening.logits / max(style.question_temperature, 1e-3)).softmax(dim=-1)
        row.written.append(1)
        row.said = 1
        return row, int(torch.multinomial(weights, 1, generator=self._generator))

    def _choose(self, among: Sequence[Any]) -> Any:
        return among[int(torch.randint(len(among), (), generator=self._choices))]

    def __iter__(self) -> Iterator[Conversation]:
        while self._rows:
            yield from self.step()

    @property
    def rows(self) -> int:
        """Conversations that are being written."""
        return len(self._rows)

    @property
    def begun(self) -> list[Conversation]:
        """The conversations in which an answer has begun, as far as they are."""
        return [_kept(row) for row in self._rows if 2 in row.written]

    @torch.inference_mode()
    def step(self) -> list[Conversation]:
        """One token for every conversation; returns those that ended."""
        device = self._model.device
        starts = torch.tensor([row.start for row in self._rows], device=device)
        columns = torch.arange(self._length + 1, device=device)
        output = self._model(
            input_ids=self._next[:, None].to(device),
            position_ids=(self._length - starts)[:, None],
            attention_mask=(columns >= starts[:, None]).long(),
            cache=self._cache,
            use_cache=True,
            output_hidden_states=True,
            **self._blocks(),
        )
        self._length += 1
        features = _features(output.hidden_states, self._levels)[:, -1]
        sampled, partition = self._choose_next(output.logits[:, -1])
        return self._advance(sampled, features, partition)

    def _blocks(self) -> dict[str, list[Block]]:
        if self._model.config._attn_implementation != SHARED:
            return {}
        count = -(-len(self._rows) // len(self._style.kinds))
        blocks = []
        for first in range(0, len(self._rows), count):
            rows = self._rows[first : first + count]
            blocks.append((first, first + len(rows), min(row.start for row in rows)))
        return {"blocks": blocks}

    def _choose_next(self, logits: Tensor) -> tuple[list[int], Tensor]:
        """logits [b, V] → a sample of each row, and its log partition [b, temperatures]."""
        style = self._style
        wanted = [
            style.question_temperature if row.side == "user" else row.temperature
            for row in self._rows
        ]
        temperatures = torch.tensor(wanted, device=logits.device)[:, None]
        u = torch.rand(len(wanted), 1, generator=self._generator, device=logits.device)
        at_once = ROWS_IN_CACHE if logits.device.type == "cpu" else len(wanted)
        sampled, partitions = [], []
        for rows, t, chance in zip(
            *(torch.split(one, at_once) for one in (logits, temperatures, u)), strict=True
        ):
            rows = rows.float()
            partitions.append(_log_partition(rows, self._temperatures))
            sampled.append(_sample(rows, t, chance))
        return torch.cat(sampled).tolist(), torch.cat(partitions)

    def _advance(
        self, sampled: list[int], features: Tensor, partition: Tensor
    ) -> list[Conversation]:
        ended: list[Conversation] = []
        fed = self._next.tolist()
        following: list[int] = []
        gone: list[int] = []
        for i, row in enumerate(self._rows):
            row.tokens.append(fed[i])
            row.features.append(features[i])
            row.log_partition.append(partition[i])
            token = self._follow(row, sampled[i])
            if token is None:
                ended.append(_kept(row))
                fresh = self._begin(i)
                if fresh is None:
                    gone.append(i)
                    continue
                self._rows[i], token = fresh
            following.append(token)
        self._next = torch.tensor(following)
        self._leave(gone)
        self._forget()
        return ended

    def _follow(self, row: _Row, sampled: int) -> int | None:
        """The row's next token; None if the conversation is over."""
        if row.forced:
            row.written.append(0)
            return row.forced.popleft()
        turns = self._turns
        asking = row.side == "user"
        limit = self._style.question_tokens if asking else row.kind.answer_tokens
        row.said += 1
        over = sampled in turns.end_ids or row.said > limit
        row.written.append(2 if row.side == "assistant" else 1)
        if not over:
            return sampled
        if asking:
            self._answer(row)
            return row.forced.popleft()
        row.turns_left -= 1
        if row.turns_left == 0:
            return None
        row.side, row.said = "user", 0
        row.forced.extend(turns.to_user)
        return row.forced.popleft()

    def _answer(self, row: _Row) -> None:
        row.side, row.said = "assistant", 0
        row.forced.extend(self._turns.to_assistant)

    def _leave(self, gone: Sequence[int]) -> None:
        if gone:
            left = set(gone)
            kept = [i for i in range(self._layers[0].rows) if i not in left]
            self._rows = [row for i, row in enumerate(self._rows) if i not in left]
            for layer in self._layers:
                layer.keep_rows(kept)

    def _forget(self) -> None:
        """Columns that no conversation begins before are of no use any more."""
        oldest = min((row.start for row in self._rows), default=0)
        if oldest >= ROOM:
            for layer in self._layers:
                layer.forget(oldest)
            for row in self._rows:
                row.start -= oldest
            self._length -= oldest


def _sample(logits: Tensor, temperatures: Tensor, u: Tensor) -> Tensor:
    """By the inverse of the distribution function: one random number a row, not one an id.

    logits [b, V], temperatures [b, 1], u [b, 1] in [0, 1) → ids [b]
    """
    top, greedy = logits.max(dim=-1, keepdim=True)
    weights = (logits - top).div_(temperatures.clamp_min(1e-3)).exp_().cumsum(dim=-1)
    found = torch.searchsorted(weights, u * weights[:, -1:]).clamp_max(logits.shape[1] - 1)
    return torch.where(temperatures == 0, greedy, found)[:, 0]


def _kept(row: _Row) -> Conversation:
    return Conversation(
        tokens=torch.tensor(row.tokens, dtype=torch.int32),
        written=torch.tensor(row.written, dtype=torch.uint8),
        features=torch.stack(row.features),
        log_partition=torch.stack(row.log_partition),
    )


@dataclass(frozen=True)
class _Opening:
    """What every conversation begins with, read once."""

    tokens: Tensor
    cache: Any
    logits: Tensor
    """[V] after its last token."""
    features: Tensor
    log_partition: Tensor


@torch.inference_mode()
def _read_opening(
    model: PreTrainedModel, tokens: Sequence[int], levels: Sequence[int], temperatures: Tensor
) -> _Opening:
    ids = torch.tensor(tokens, device=model.device)
    cache = DynamicCache()
    output = model(input_ids=ids[None], cache=cache, use_cache=True, output_hidden_states=True)
    logits = output.logits[0].float()
    return _Opening(
        tokens=ids,
        cache=cache,
        logits=logits[-1],
        features=_features(output.hidden_states, levels)[0],
        log_partition=_log_partition(logits, temperatures),
    )


def _features(hidden_states: Sequence[Tensor], levels: Sequence[int]) -> Tensor:
    """→ [b, n, levels, hidden]"""
    if not levels:
        return torch.empty(*hidden_states[0].shape[:2], 0, hidden_states[0].shape[-1])
    return torch.stack([hidden_states[level] for level in levels], dim=-2).to(torch.float16).cpu()


def _log_partition(logits: Tensor, temperatures: Tensor) -> Tensor:
    """logits [n, V] → [n, temperatures]"""
    top = logits.amax(dim=-1, keepdim=True)
    sums = [(logits - top).div_(t).exp_().sum(dim=-1) for t in temperatures.tolist()]
    return (torch.stack(sums, dim=-1).log_() + top / temperatures).cpu()
