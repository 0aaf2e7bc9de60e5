"""How many tokens to draft before the target is asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fsd_chat.decoding.divergence import NAMES
from fsd_chat.decoding.records import Round, Token
from fsd_chat.decoding.settings import Knob


class Lookahead(Protocol):
    def length(self, knob: Knob) -> int:
        """Tokens to draft in the next round; 0 asks the target alone."""

    def observe(self, round: Round) -> None:
        """What the last round brought and cost."""


class Fixed:
    """Always the same length. The paper's experiments use 5."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"the draft length must be 0 or more, not {count}")
        self.count = count

    def length(self, knob: Knob) -> int:
        return self.count

    def observe(self, round: Round) -> None:
        pass


class Heuristic:
    """Two more after a round that kept every draft, one less after any other; at least one.

    The schedule that transformers' assisted generation calls `heuristic`, starting from 5.
    """

    def __init__(self, start: int = 5, most: int = 20) -> None:
        self.count = start
        self.most = most

    def length(self, knob: Knob) -> int:
        return self.count

    def observe(self, round: Round) -> None:
        if round.drafted:
            kept_all = round.accepted == round.drafted
            self.count = min(self.most, max(1, self.count + (2 if kept_all else -1)))


class Recorded:
    """The lengths of an earlier reply, so that it can be written again exactly."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = deque(lengths)

    def length(self, knob: Knob) -> int:
        return self._lengths.popleft() if self._lengths else 0

    def observe(self, round: Round) -> None:
        pass


class Adaptive:
    """The length that promises the most tokens per second, from what is measured as it goes.

    With acceptance rate a, drafting k gives (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023,
    eq. 1) for k draft steps, and one verification and judgement of k + 1 rows. a is what the
    *present* knob would have accepted at the positions verified lately, so turning the knob shows
    at once. Where no length pays, none is drafted, but for a probe now and then: text changes.
    Where one pays, the target is asked alone now and then: a machine's speed changes as well.
    """

    PROBE_EVERY = 24
    PROBES = (1, 2)
    ALONE_EVERY = 48
    """Rounds; the one where nothing is drafted otherwise, the other where something is."""
    DOUBT = 1.05
    """As fast as this is the target alone if nothing is drafted: what costs nothing is drafted,
    since it shows what another threshold would bring."""
    START = 4

    def __init__(
        self,
        most: int = 12,
        remembered: int = 64,
        smoothing: float = 0.2,
        first: Sequence[int] = (START, 0, *PROBES),
    ) -> None:
        """first: lengths to try before any is chosen. Rows cost no even price each: kernels take
        them by twos or fours."""
        self.most = most
        self.first = first
        self.smoothing = smoothing
        self._verified: deque[tuple[Token, _Measure]] = deque(maxlen=remembered)
        self._draft_step_s: float | None = None
        self._verify_s: dict[int, float] = {}
        self._measured: dict[int, int] = {}
        self._rounds = 0
        self._since_draft = 0
        self._warm = False

    def length(self, knob: Knob) -> int:
        for drafts in self.first:
            if drafts + 1 not in self._verify_s:
                return drafts
        a = self.acceptance(knob)
        best = max(range(1, self.most + 1), key=lambda k: self.gain(k, a))
        if self.gain(0, a) > self.DOUBT * self.gain(best, a):
            best = 0
        if best and self._rounds - self._measured.get(1, 0) >= self.ALONE_EVERY:
            return 0
        if best == 0 and self._since_draft >= self.PROBE_EVERY:
            return min(self.PROBES, key=lambda k: self._measured.get(k + 1, 0))
        return best

    def gain(self, drafts: int, a: float) -> float:
        """Expected tokens per second at this draft length and acceptance rate."""
        tokens = drafts + 1.0 if a >= 1 else (1 - a ** (drafts + 1)) / (1 - a)
        seconds = drafts * (self._draft_step_s or 0.0) + self.verification(drafts + 1)
        return tokens / max(seconds, 1e-9)

    def acceptance(self, knob: Knob) -> float:
        """Share of the remembered positions that `knob` lets through. Rules whose knob is no
        divergence are taken at what they did."""
        if not self._verified:
            return 0.5
        chances = (_chance(knob, token, measure) for token, measure in self._verified)
        return sum(chances) / len(self._verified)

    def verification(self, rows: int) -> float:
        """Seconds from the draft to the end of a round of so many rows, between the row counts
        measured so far."""
        known = sorted(self._verify_s)
        below = max((row for row in known if row <= rows), default=known[0])
        above = min((row for row in known if row >= rows), default=known[-1])
        low, high = self._verify_s[below], self._verify_s[above]
        if below == above or rows <= below:
            return low
        return low + (high - low) * (rows - below) / (above - below)

    def observe(self, round: Round) -> None:
        self._rounds += 1
        self._since_draft = 0 if round.drafted else self._since_draft + 1
        for token in round.tokens:
            if token.exact is not None:
                self._verified.append((token, _measure(round.knob)))
        # A first round can take many times as long as the next; it would rule drafting out.
        if self._warm:
            self._time(round)
        self._warm = True

    def _time(self, round: Round) -> None:
        rows = round.drafted + 1
        age = self._rounds - self._measured.get(rows, 0)
        old = self._verify_s.get(rows)
        self._verify_s[rows] = self._blend(old, round.total_s - round.draft_s, age)
        self._measured[rows] = self._rounds
        if round.drafted:
            step = round.draft_s / round.drafted
            self._draft_step_s = self._blend(self._draft_step_s, step)

    def _blend(self, old: float | None, new: float, age: int = 1) -> float:
        """The moving average, in which what was measured `age` rounds ago has faded so much."""
        return new if old is None else new + (1 - self.smoothing) ** age * (old - new)


_Measure = tuple[str, str, int, float, bool]


def _measure(knob: Knob) -> _Measure:
    """What decides the value of the divergence, whatever it is then compared with."""
    return knob.divergence, knob.form, knob.form_k, knob.form_p, knob.on_processed


def _chance(knob: Knob, token: Token, measure: _Measure) -> float:
    """Chance that `knob` lets a draft stand where `token` was judged by another measure, maybe."""
    stayed = float(token.origin != "recovered")
    exact = stayed if token.exact is None else token.exact
    divergence = _divergence_for(knob, token, measure)
    match knob.rule:
        case "exact":
            return exact
        case "fsd" if divergence is not None:
            return 1.0 if 0 < knob.threshold >= divergence else exact
        case "fsd-paper" if divergence is not None:
            return float(divergence <= knob.threshold)
        case _:
            return stayed


def _divergence_for(knob: Knob, token: Token, measure: _Measure) -> float | None:
    if measure == _measure(knob):
        return token.divergence
    if knob.form == "full" and not knob.on_processed and token.spectrum:
        return token.spectrum[NAMES.index(knob.divergence)]
    return None


def lookahead(name: str) -> Lookahead:
    """`adaptive`, `paper`, `heuristic`, or a number. Raises ValueError for anything else."""
    match name:
        case "adaptive":
            return Adaptive()
        case "paper":
            return Fixed(5)
        case "heuristic":
            return Heuristic()
    try:
        return Fixed(int(name))
    except ValueError:
        known = "adaptive, paper, heuristic or a number of tokens"
        raise ValueError(f"the draft length must be {known}, not {name!r}") from None
