"""Counting a reply from its records."""

from __future__ import annotations

import pytest

from fsd_chat.engine.messages import Origin, Round, TokenRecord
from fsd_chat.engine.statistics import RECENT_ROUNDS, Statistics, recount


def token(origin: Origin, exact: float | None = None) -> TokenRecord:
    return TokenRecord(1, "x", origin, 0.1 if exact is not None else None, exact)


def round_of(*tokens: TokenRecord, drafted: int, total_s: float = 0.5) -> Round:
    return Round(request=1, index=0, tokens=tokens, text="", drafted=drafted, total_s=total_s)


def test_a_rejection_ends_the_verified_prefix_and_later_drafts_are_only_drafted() -> None:
    counts = Statistics()
    counts.add(round_of(token("accepted", 0.9), token("recovered", 0.2), drafted=4))
    assert (counts.drafted, counts.verified, counts.accepted, counts.recovered) == (4, 2, 1, 1)
    assert counts.acceptance == pytest.approx(0.5)
    assert counts.exact_acceptance == pytest.approx(0.55)


def test_the_bonus_token_is_never_accepted() -> None:
    counts = Statistics()
    counts.add(round_of(token("accepted", 1.0), token("bonus"), drafted=1))
    assert (counts.accepted, counts.verified, counts.bonus, counts.output) == (1, 1, 1, 2)
    assert counts.acceptance == 1.0


def test_fuzzy_tokens_are_accepted_and_counted_apart() -> None:
    counts = Statistics()
    counts.add(round_of(token("fuzzy", 0.1), token("accepted", 0.9), token("bonus"), drafted=2))
    assert (counts.accepted, counts.fuzzy) == (2, 1)


def test_no_draft_means_no_acceptance_rate() -> None:
    counts = Statistics()
    counts.add(round_of(token("target"), drafted=0))
    assert counts.acceptance is None
    assert counts.exact_acceptance is None
    assert counts.tokens_per_second == pytest.approx(2.0)


def test_the_recent_rate_forgets_older_rounds() -> None:
    counts = Statistics()
    for _ in range(20):
        counts.add(round_of(token("recovered", 0.1), drafted=1))
    for _ in range(RECENT_ROUNDS):
        counts.add(round_of(token("accepted", 0.9), token("bonus"), drafted=1))
    assert counts.recent_acceptance == 1.0
    assert counts.acceptance == pytest.approx(RECENT_ROUNDS / (20 + RECENT_ROUNDS))
    assert counts.recent_tokens_per_second == pytest.approx(4.0)


def test_the_drafted_total_is_summed_and_not_rebuilt_from_a_configured_length() -> None:
    counts = Statistics()
    counts.add(round_of(token("accepted", 1.0), token("bonus"), drafted=5))
    counts.add(round_of(token("accepted", 1.0), drafted=1))
    assert counts.as_json()["draft_n"] == 6


def test_a_recount_of_the_records_gives_the_same_counts() -> None:
    rounds = [
        round_of(token("accepted", 0.7), token("fuzzy", 0.2), token("recovered", 0.1), drafted=4),
        round_of(token("accepted", 0.7), token("bonus"), drafted=1),
        round_of(token("target"), drafted=0),
    ]
    counts = Statistics()
    for round in rounds:
        counts.add(round)
    again = recount(token for round in rounds for token in round.tokens)
    for name in ("accepted", "fuzzy", "recovered", "bonus", "target", "verified", "output"):
        assert getattr(again, name) == getattr(counts, name)
    assert again.exact_sum == pytest.approx(counts.exact_sum)
