"""Where drafted tokens come from, and with which Q they were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import torch
from torch import Tensor

from fsd_chat.decoding.distributions import (
    filtered_logits,
    point_masses,
    probabilities,
    raw_log_probabilities,
    sample,
)
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.penalties import Penalties
from fsd_chat.decoding.settings import Sampling


@dataclass(frozen=True)
class Proposal:
    """k drafted tokens, and everything the verification needs to know of them."""

    tokens: Tensor
    """[k] long."""
    drawn_from: Tensor
    """Q [k, V], the very distribution each was drawn from; a point mass if it was not sampled."""
    log_raw: Tensor
    """log Q [k, V] before sampling settings, for the divergence."""
    processed: tuple[Tensor, ...]
    """Logits after them but before temperature 0 picks one token, [k, V] if laid below each other;
    for `on_processed`."""
    finite: Tensor
    """[k], False where the draft's row was no distribution; such a draft never stays."""

    @property
    def log_processed(self) -> Tensor:
        """log Q [k, V] of `processed`."""
        return raw_log_probabilities(torch.cat(self.processed))

    def to(self, device: torch.device) -> Proposal:
        if self.tokens.device == device:
            return self
        return Proposal(
            self.tokens.to(device),
            self.drawn_from.to(device),
            self.log_raw.to(device),
            tuple(rows.to(device) for rows in self.processed),
            self.finite.to(device),
        )


class Drafter(Protocol):
    """Proposes what may come next. Begins anew with every reply."""

    @property
    def limit(self) -> int:
        """Longest text, in tokens, that it can draft up to."""

    def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
        """A reply to `prompt` begins."""

    def propose(self, committed: Sequence[int], count: int) -> Proposal | None:
        """At most `count` ≥ 1 tokens to follow `committed`; None if it has nothing to propose."""

    def commit(self, committed: Sequence[int], new: int) -> None:
        """The last `new` tokens of `committed` are now certain, and nothing else was."""


class ModelDrafter:
    """Drafts with a model, each token sampled from its row (or the likeliest, if greedy)."""

    def __init__(self, model: CachedModel) -> None:
        self.model = model
        self._rows: Tensor = torch.empty(2, 0, model.vocabulary)

    @property
    def limit(self) -> int:
        return self.model.limit

    def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
        self._sampling = sampling
        device, vocabulary = self.model.device, self.model.vocabulary
        self._penalties = Penalties(sampling, prompt, vocabulary, device)
        self._generator = torch.Generator(device).manual_seed(seed)

    def propose(self, committed: Sequence[int], count: int) -> Proposal:
        """One forward per token. The first also reads what the cache has not seen yet: the token
        after a full acceptance, or a stretch in which nothing was drafted."""
        model = self.model
        tokens = torch.empty(count, dtype=torch.long, device=model.device)
        unread = torch.tensor(committed[model.length :], device=model.device)
        log_raw, processed, drawn_from, drawn_logits = [], [], [], []
        for i in range(count):
            row = model.forward(unread, rows=1).float()
            penalised = self._penalties.apply_last(row, tokens[:i])
            filtered = filtered_logits(penalised, self._sampling)
            q = self._to_draw_from(filtered)
            unread = sample(q, self._generator)
            tokens[i : i + 1] = unread
            log_raw.append(raw_log_probabilities(row))
            processed.append(filtered)
            drawn_from.append(q)
            drawn_logits.append(filtered.gather(-1, unread[:, None])[:, 0])
        log_rows, rows = self._buffers(count)
        torch.cat(log_raw, out=log_rows)
        torch.cat(drawn_from, out=rows)
        # One entry tells of NaN in a row of any softmax, and the likeliest logit of everything.
        finite = torch.cat(drawn_logits).isfinite() & ~(log_rows[:, 0] + rows[:, 0]).isnan()
        return Proposal(tokens, rows, log_rows, tuple(processed), finite)

    def _buffers(self, count: int) -> tuple[Tensor, Tensor]:
        """Twice [count, V], the same memory every time: a proposal lasts a round."""
        if self._rows.shape[1] < count:
            shape = (2, count, self.model.vocabulary)
            self._rows = torch.empty(shape, device=self.model.device)
        return self._rows[0, :count], self._rows[1, :count]

    def _to_draw_from(self, filtered: Tensor) -> Tensor:
        greedy = self._sampling.greedy_draft
        return probabilities(filtered, 0.0 if greedy else self._sampling.temperature)

    def commit(self, committed: Sequence[int], new: int) -> None:
        self._penalties.commit(committed[len(committed) - new :])
        self.model.rollback(min(self.model.length, len(committed) - 1))


class PromptLookup:
    """Drafts what followed the last occurrence of the latest few tokens (Saxena 2023): no model,
    every Q a point mass."""

    def __init__(self, vocabulary: int, device: torch.device, longest: int = 3) -> None:
        self.vocabulary = vocabulary
        self.device = device
        self.longest = longest

    @property
    def limit(self) -> int:
        return 2**31

    def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 0
        self._index(prompt)

    def _index(self, committed: Sequence[int]) -> None:
        # The last token has no follower yet: n-grams that end with it wait for the next call.
        for end in range(max(1, self._indexed), len(committed)):
            for size in range(1, min(self.longest, end) + 1):
                self._followers[tuple(committed[end - size : end])] = end
        self._indexed = len(committed)

    def propose(self, committed: Sequence[int], count: int) -> Proposal | None:
        for size in range(min(self.longest, len(committed)), 0, -1):
            start = self._followers.get(tuple(committed[-size:]))
            if start is not None:
                return self._copy(committed[start : start + count])
        return None

    def _copy(self, found: Sequence[int]) -> Proposal | None:
        # A prompt may hold special tokens outside the vocabulary that the two models share.
        known = list(takewhile(lambda token: token < self.vocabulary, found))
        if not known:
            return None
        tokens = torch.tensor(known, device=self.device)
        rows = point_masses(tokens, self.vocabulary)
        finite = torch.ones(len(known), dtype=torch.bool, device=self.device)
        log_rows = rows.log()
        return Proposal(tokens, rows, log_rows, (log_rows,), finite)

    def commit(self, committed: Sequence[int], new: int) -> None:
        self._index(committed)


class FirstThatHas:
    """Asks several drafters in order and takes the first proposal there is."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = drafters

    @property
    def limit(self) -> int:
        return max(drafter.limit for drafter in self.drafters)

    def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
        for drafter in self.drafters:
            drafter.begin(sampling, prompt, seed)

    def propose(self, committed: Sequence[int], count: int) -> Proposal | None:
        for drafter in self.drafters:
            room = min(count, drafter.limit - len(committed))
            if room > 0 and (proposal := drafter.propose(committed, room)) is not None:
                return proposal
        return None

    def commit(self, committed: Sequence[int], new: int) -> None:
        for drafter in self.drafters:
            drafter.commit(committed, new)
