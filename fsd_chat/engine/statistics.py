"""Counting a reply: what the knob bought and what it cost, from the token records alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fsd_chat.engine.messages import VERIFIED, Origin, Round, TokenRecord

RECENT_ROUNDS = 8


@dataclass
class Statistics:
    """Sums over the rounds of one reply.

    accepted + recovered + bonus + target = output tokens, where accepted includes the fuzzy ones.
    A drafted token is verified if it stands before or at the first rejection of its round; those
    after it were drafted in vain and count in `drafted` only. A bonus token is never accepted.
    """

    drafted: int = 0
    accepted: int = 0
    fuzzy: int = 0
    recovered: int = 0
    bonus: int = 0
    target: int = 0
    rounds: int = 0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    time_to_first_token_s: float | None = None
    exact_sum: float = 0.0
    recent: list[tuple[int, int, int, float]] = field(default_factory=list)
    """(accepted, verified, output tokens, seconds) of the last rounds."""

    def add(self, round: Round) -> None:
        before = self.accepted, self.verified, self.output
        for token in round.tokens:
            self._count(token.origin)
            if token.origin in VERIFIED and token.exact is not None:
                self.exact_sum += token.exact
        self.drafted += round.drafted
        self.rounds += 1
        self.decode_s += round.total_s
        self.draft_s += round.draft_s
        self.verify_s += round.verify_s
        self.recent.append(
            (
                self.accepted - before[0],
                self.verified - before[1],
                self.output - before[2],
                round.total_s,
            )
        )
        del self.recent[:-RECENT_ROUNDS]

    def _count(self, origin: Origin) -> None:
        match origin:
            case "accepted":
                self.accepted += 1
            case "fuzzy":
                self.accepted += 1
                self.fuzzy += 1
            case "recovered":
                self.recovered += 1
            case "bonus":
                self.bonus += 1
            case "target":
                self.target += 1

    @property
    def verified(self) -> int:
        return self.accepted + self.recovered

    @property
    def output(self) -> int:
        return self.accepted + self.recovered + self.bonus + self.target

    @property
    def acceptance(self) -> float | None:
        """accepted / verified; None while nothing was verified."""
        return self.accepted / self.verified if self.verified else None

    @property
    def exact_acceptance(self) -> float | None:
        """What exact speculative decoding would have accepted on the same positions, on average."""
        return self.exact_sum / self.verified if self.verified else None

    @property
    def recent_acceptance(self) -> float | None:
        verified = sum(row[1] for row in self.recent)
        return sum(row[0] for row in self.recent) / verified if verified else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.output / self.decode_s if self.decode_s > 0 else None

    @property
    def recent_tokens_per_second(self) -> float | None:
        seconds = sum(row[3] for row in self.recent)
        return sum(row[2] for row in self.recent) / seconds if seconds > 0 else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.output / self.rounds if self.rounds else None

    def as_json(self) -> dict[str, float | int | None]:
        """Under the names that other tools read already (llama.cpp, LM Studio)."""
        return {
            "draft_n": self.drafted,
            "verified_n": self.verified,
            "draft_n_accepted": self.accepted,
            "fuzzy_n": self.fuzzy,
            "recovered_n": self.recovered,
            "bonus_n": self.bonus,
            "target_n": self.target,
            "output_n": self.output,
            "rounds": self.rounds,
            "acceptance_rate": self.acceptance,
            "exact_acceptance_rate": self.exact_acceptance,
            "tokens_per_round": self.tokens_per_round,
            "tokens_per_second": self.tokens_per_second,
            "time_to_first_token_s": self.time_to_first_token_s,
            "decode_s": self.decode_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
        }


def recount(tokens: Iterable[TokenRecord]) -> Statistics:
    """The counts that follow from the records of a stored reply (no timings, no drafted total)."""
    counts = Statistics()
    counts.add(Round(request=0, index=0, tokens=tuple(tokens), text=""))
    counts.rounds = 0
    counts.recent.clear()
    return counts
