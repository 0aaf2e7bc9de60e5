"""Small models whose every distribution is known, and whole replies written with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fsd_chat.decoding.drafting import Drafter, ModelDrafter
from fsd_chat.decoding.lookahead import Fixed, Lookahead
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.records import Round
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping, TextWatch


class TableModel:
    """A language model made of a function from context to logits, that keeps its tokens as cache.

    Its logits depend on the whole context through a hash-like mix, so a cache that is off by one
    token shows in every later row.
    """

    def __init__(
        self,
        vocabulary: int,
        seed: int,
        limit: int = 10_000,
        sharpness: float = 1.5,
        order: int | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(997, vocabulary, generator=generator) * sharpness
        self.vocabulary = vocabulary
        self.limit = limit
        self.order = order
        self.device = torch.device("cpu")
        self.can_roll_back = True
        self.tokens: list[int] = []
        self.forwarded = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def logits_after(self, context: Sequence[int]) -> Tensor:
        state = 7
        for token in context if self.order is None else context[-self.order :]:
            state = (state * 31 + token * 17 + 3) % 997
        return self.table[state]

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        assert tokens.shape[0] > 0
        self.forwarded += tokens.shape[0]
        found = []
        for token in tokens.tolist():
            self.tokens.append(token)
            found.append(self.logits_after(self.tokens))
        assert self.length <= self.limit, "the context was overrun"
        return torch.stack(found)[-rows:]

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length, f"cannot roll back from {self.length} to {length}"
        del self.tokens[length:]


def draft_for(
    target: TableModel, noise: float = 1.0, seed: int = 1, limit: int = 10_000
) -> TableModel:
    """A draft model that is right about the target now and then; always, without noise."""
    draft = TableModel(target.vocabulary, seed, limit, order=target.order)
    generator = torch.Generator().manual_seed(seed)
    draft.table = target.table + noise * torch.randn(target.table.shape, generator=generator)
    return draft


def models_of(drafter: Drafter | None) -> list[TableModel]:
    """The models inside a drafter."""
    inside = getattr(drafter, "drafters", [drafter])
    return [each.model for each in inside if isinstance(each, ModelDrafter)]


def check_caches(target: TableModel, drafter: Drafter | None, committed: list[int]) -> None:
    """The invariant after every round: what is cached is what is committed, but for the last."""
    assert target.tokens == committed[:-1]
    for model in models_of(drafter):
        assert model.length <= len(committed) - 1
        assert model.tokens == committed[: model.length]


def write_reply(
    target: TableModel,
    drafter: Drafter | None,
    committed: list[int],
    *,
    knob: Knob | LiveKnob | None = None,
    sampling: Sampling | None = None,
    lookahead: Lookahead | int | None = 3,
    max_tokens: int = 20,
    end_ids: Sequence[int] = (),
    watch: TextWatch | None = None,
    seed: int = 0,
    learned: dict[str, Lookahead] | None = None,
    exact_prefix: int = 0,
    after_round: Callable[[Round], None] = lambda round: None,
) -> list[Round]:
    """Prefill and decode a whole reply onto `committed`, checking the caches after every round."""
    for _ in prefill(target, committed[:-1]):
        pass
    live = knob if isinstance(knob, LiveKnob) else LiveKnob(knob or Knob())
    reply = Reply(
        live,
        sampling or Sampling(temperature=1.0),
        Stopping(frozenset(end_ids), max_tokens, watch),
        seed,
        exact_prefix,
        Fixed(lookahead) if isinstance(lookahead, int) else lookahead,
        {} if learned is None else learned,
    )
    rounds = []
    for round in decode(target, drafter, committed, reply):
        check_caches(target, drafter, committed)
        rounds.append(round)
        after_round(round)
    check_caches(target, drafter, committed)
    return rounds
