"""Fuzzy speculative decoding: draft → verify → commit, one round after another.

`decode` is the algorithm. Everything it does to a distribution is in `verification` and `rules`;
everything it knows of a model is in `model`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fsd_chat.decoding.drafting import Drafter, Proposal
from fsd_chat.decoding.lookahead import Lookahead, lookahead
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.penalties import Penalties
from fsd_chat.decoding.records import Finish, Round, Token
from fsd_chat.decoding.rules import TARGET_ONLY
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.decoding.verification import TargetRows, verify


@dataclass(frozen=True)
class Reply:
    """What is asked of one reply."""

    knob: LiveKnob
    sampling: Sampling
    stopping: Stopping
    seed: int
    exact_prefix: int = 0
    """So many tokens follow exact speculative decoding whatever the rule."""
    lookahead: Lookahead | None = None
    """Overrides the one that the knob names."""
    learned: dict[str, Lookahead] = field(default_factory=dict)
    """By name, what the knob named before; an earlier reply's knows what the models cost."""


def prefill(model: CachedModel, tokens: Sequence[int], chunk: int = 256) -> Iterator[int]:
    """Read `tokens` from the first one the cache lacks; yields how many it holds after each chunk.

    Closing the generator between two chunks leaves a cache that is good as far as it goes.
    """
    while model.length < len(tokens):
        unread = tokens[model.length : model.length + chunk]
        with torch.inference_mode():
            model.forward(torch.tensor(unread, device=model.device), rows=1)
            model.rollback(model.length)
        yield model.length


def decode(
    target: CachedModel, drafter: Drafter | None, committed: list[int], reply: Reply
) -> Generator[Round, None, None]:
    """Write a reply to the prompt in `committed`, appending to it; yields one round at a time.

    committed: at least one id; all of them but the last must be in the target's cache already
    (`prefill`). After every round, and however the generator is left, the target's cache holds all
    of `committed` but the last token, and the draft's no more than that.
    """
    if target.length != len(committed) - 1:
        raise ValueError(
            f"the target's cache must hold all but the last of {len(committed)} tokens, "
            f"and holds {target.length}"
        )
    rounds = _Rounds(target, drafter, committed, reply)
    finish: Finish | None = None
    try:
        while finish is None:
            with torch.inference_mode():
                round = rounds.next()
            finish = round.finish
            yield round
    finally:
        # An exception can leave a round half done, with drafts in both caches.
        target.rollback(min(target.length, len(committed) - 1))
        if drafter is not None:
            drafter.commit(committed, 0)


class _Rounds:
    """The state of a reply between two rounds."""

    def __init__(
        self, target: CachedModel, drafter: Drafter | None, committed: list[int], reply: Reply
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.committed = committed
        self.reply = reply
        self.said = 0
        self.penalties = Penalties(reply.sampling, committed, target.vocabulary, target.device)
        self.generator = torch.Generator(target.device).manual_seed(reply.seed)
        if drafter is not None:
            # Not the target's seed: a draft drawn with the noise that later judges it is no sample.
            drafter.begin(reply.sampling, committed, _other_seed(reply.seed))

    def next(self) -> Round:
        knob = self.reply.knob.current
        lookahead = self.lookahead(knob)
        clock = _Clock(self.target.device)

        proposal = self.draft(self.draft_length(knob, lookahead))
        clock.lap()
        logits = self.target_rows(proposal)
        clock.lap()
        tokens = self.decide(logits, proposal, knob)
        kept, finish = self.commit(tokens)

        draft_s, verify_s, total_s = clock.seconds()
        round = Round(
            index=self.said - len(kept),
            tokens=kept,
            drafted=0 if proposal is None else proposal.tokens.shape[0],
            knob=knob,
            draft_s=draft_s,
            verify_s=verify_s,
            total_s=total_s,
            finish=finish,
        )
        lookahead.observe(round)
        return round

    def lookahead(self, knob: Knob) -> Lookahead:
        if self.reply.lookahead is not None:
            return self.reply.lookahead
        if knob.lookahead not in self.reply.learned:
            self.reply.learned[knob.lookahead] = lookahead(knob.lookahead)
        return self.reply.learned[knob.lookahead]

    def draft_length(self, knob: Knob, lookahead: Lookahead) -> int:
        """What the policy wants, within what is left of the reply and of both contexts. One token
        of each round is the target's own."""
        # Asked in every round: a recorded length belongs to the round it was recorded in.
        wanted = lookahead.length(knob)
        if self.drafter is None or knob.rule == TARGET_ONLY or not self.target.can_roll_back:
            return 0
        rooms = (
            self.reply.stopping.max_tokens - self.said - 1,
            self.target.limit - len(self.committed),
            self.drafter.limit - len(self.committed),
        )
        return max(0, min(wanted, *rooms))

    def draft(self, count: int) -> Proposal | None:
        if count == 0 or self.drafter is None:
            return None
        proposal = self.drafter.propose(self.committed, count)
        return None if proposal is None else proposal.to(self.target.device)

    def target_rows(self, proposal: Proposal | None) -> Tensor:
        """One forward over the last committed token and the k drafts → logits [k + 1, V]."""
        last = torch.tensor(self.committed[-1:], device=self.target.device)
        tokens = last if proposal is None else torch.cat([last, proposal.tokens])
        return self.target.forward(tokens, rows=tokens.shape[0])

    def decide(self, logits: Tensor, proposal: Proposal | None, knob: Knob) -> tuple[Token, ...]:
        # Once: everything that follows computes in float32.
        logits = logits.float()
        drafts = logits.new_empty(0, dtype=torch.long) if proposal is None else proposal.tokens
        penalised = self.penalties.apply(logits, drafts)
        rows = TargetRows.of(logits, penalised, self.reply.sampling)
        threshold = torch.tensor(knob.threshold, device=logits.device)
        exact_positions = max(0, self.reply.exact_prefix - self.said)
        return verify(rows, proposal, knob, threshold, exact_positions, self.generator)

    def commit(self, tokens: Sequence[Token]) -> tuple[tuple[Token, ...], Finish | None]:
        """Cut the tokens where the reply ends, and roll both caches back to what is committed."""
        count, finish = self.reply.stopping.cut(self.said, [token.id for token in tokens])
        kept = tuple(tokens[:count])
        ids = [token.id for token in kept]
        self.committed.extend(ids)
        self.said += count
        self.penalties.commit(ids)
        self.target.rollback(len(self.committed) - 1)
        if self.drafter is not None:
            self.drafter.commit(self.committed, count)
        if finish is None and len(self.committed) >= self.target.limit:
            finish = "context"
        return kept, finish


def _other_seed(seed: int) -> int:
    """A different seed, the same for the same seed (an odd multiplier permutes 63-bit numbers)."""
    return (seed * 0x5851F42D4C957F2D + 0x14057B7EF767814F) % 2**63


class _Clock:
    """Seconds of the draft, of the target's forward, and of the whole round.

    On CUDA the host runs ahead of the device, so events measure there; they are read after the
    round's one transfer has waited for the device anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._laps = [time.perf_counter()]
        self._record()

    def _record(self) -> None:
        if self._on_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)

    def lap(self) -> None:
        self._laps.append(time.perf_counter())
        self._record()

    def seconds(self) -> tuple[float, float, float]:
        total = time.perf_counter() - self._laps[0]
        if self._on_cuda:
            start, drafted, verified = self._events
            return (
                start.elapsed_time(drafted) / 1000,
                drafted.elapsed_time(verified) / 1000,
                total,
            )
        start_s, drafted_s, verified_s = self._laps
        return drafted_s - start_s, verified_s - drafted_s, total
