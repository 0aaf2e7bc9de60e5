"""From the target's rows to the committed tokens, and what is recorded of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from one_round import OneRound, proposal_of
from torch import Tensor

from fsd_chat.decoding import divergence
from fsd_chat.decoding.drafting import Proposal
from fsd_chat.decoding.model import NonFiniteTarget
from fsd_chat.decoding.rules import RULES
from fsd_chat.decoding.settings import Knob, Sampling
from fsd_chat.decoding.verification import TargetRows, verify

INF = math.inf
WARM = Sampling(temperature=1.0)
P = [[0.5, 0.3, 0.2, 0.0], [0.1, 0.1, 0.2, 0.6], [0.25, 0.25, 0.3, 0.2]]
Q = [[0.2, 0.3, 0.4, 0.1], [0.4, 0.3, 0.2, 0.1]]


def js(p: list[float], q: list[float]) -> float:
    def kl_to_mixture(row: list[float]) -> float:
        mixture = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        return sum(a * math.log(a / m) for a, m in zip(row, mixture, strict=True) if a)

    return (kl_to_mixture(p) + kl_to_mixture(q)) / 2


JS = [js(p, q) for p, q in zip(P, Q, strict=False)]  # 0.085 and 0.173


def log(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows).log()


def near(values: list[float]) -> Any:
    return pytest.approx(values, abs=1e-6)


def round_of(
    tokens: list[int],
    knob: Knob,
    sampling: Sampling = WARM,
    exact_positions: int = 0,
    target: list[list[float]] = P,
    draft: list[list[float]] = Q,
) -> OneRound:
    proposal = proposal_of(log(draft), tokens, sampling)
    return OneRound(log(target), proposal, knob, sampling, exact_positions)


def exact(tokens: list[int]) -> OneRound:
    return round_of(tokens, Knob(rule="exact"))


def origins(round: OneRound, coins: list[float]) -> list[str]:
    return [token.origin for token in round.with_coins(coins)[0]]


def ids(round: OneRound, coins: list[float]) -> list[int]:
    return [token.id for token in round.with_coins(coins)[0]]


def test_drafts_the_coin_falls_for_are_accepted_and_a_bonus_follows_from_the_target() -> None:
    tokens, weights = exact([0, 2]).with_coins([0.99, 0.99])

    assert [token.id for token in tokens[:2]] == [0, 2]
    assert [token.origin for token in tokens] == ["accepted", "accepted", "bonus"]
    assert weights.tolist() == near(P[2])


def test_the_first_rejected_draft_is_replaced_from_its_own_residual() -> None:
    tokens, weights = exact([0, 1]).with_coins([0.99, 0.99])

    assert [token.origin for token in tokens] == ["accepted", "recovered"]
    assert weights.tolist() == near([0, 0, 0, 1])
    assert (tokens[1].rejected, tokens[1].id) == (1, 3)


def test_drafts_after_the_first_rejection_are_forgotten_however_their_coins_fall() -> None:
    tokens, weights = exact([2, 2]).with_coins([0.51, 0.0])

    assert [token.origin for token in tokens] == ["recovered"]
    assert weights.tolist() == near([1, 0, 0, 0])
    assert tokens[0].rejected == 2


def test_a_draft_the_coin_would_have_rejected_is_fuzzy_and_counted_apart() -> None:
    fuzzy = round_of([2, 1], Knob(rule="fsd", threshold=0.2))

    assert origins(fuzzy, [0.4, 0.9]) == ["accepted", "fuzzy", "bonus"]
    assert origins(fuzzy, [0.6, 0.9]) == ["fuzzy", "fuzzy", "bonus"]
    assert origins(fuzzy, [0.6, 0.1]) == ["fuzzy", "accepted", "bonus"]


def test_the_threshold_is_compared_position_by_position() -> None:
    between = round_of([2, 1], Knob(rule="fsd", threshold=0.1))

    assert origins(between, [0.6, 0.9]) == ["fuzzy", "recovered"]
    assert origins(between, [0.6, 0.1]) == ["fuzzy", "accepted", "bonus"]


def test_fsd_paper_accepts_whatever_was_drafted_and_the_coin_only_names_it() -> None:
    paper = round_of([2, 1], Knob(rule="fsd-paper", threshold=0.2))

    assert origins(paper, [0.4, 0.9]) == ["accepted", "fuzzy", "bonus"]
    tokens, weights = round_of([0, 1], Knob(rule="fsd-paper", threshold=0.1)).with_coins([0, 0])
    assert [token.origin for token in tokens] == ["accepted", "recovered"]
    assert weights.tolist() == near(P[1])


def test_every_token_records_its_probabilities_and_its_divergence() -> None:
    first, second, bonus = exact([0, 2]).with_coins([0.0, 0.0])[0]

    assert (first.target_probability, first.draft_probability) == pytest.approx((0.5, 0.2))
    assert (second.target_probability, second.draft_probability) == pytest.approx((0.2, 0.2))
    assert [first.divergence, second.divergence] == pytest.approx(JS, abs=1e-6)
    assert (bonus.id, bonus.target_probability) == (2, pytest.approx(0.3))
    assert bonus.draft_probability is None
    assert (bonus.divergence, bonus.exact, bonus.spectrum, bonus.rejected) == (None, None, (), None)


def test_a_recovered_token_records_the_position_it_stands_at() -> None:
    (recovered,) = exact([2, 2]).with_coins([0.51, 0.0])[0]

    assert recovered.id == 0
    assert recovered.target_probability == pytest.approx(0.5)
    assert recovered.draft_probability == pytest.approx(0.2)
    assert recovered.divergence == pytest.approx(JS[0], abs=1e-6)
    assert recovered.exact == pytest.approx(0.7)


def test_what_exact_decoding_would_have_accepted_is_recorded_under_every_rule() -> None:
    for rule in RULES:
        tokens = round_of([0, 3], Knob(rule=rule, threshold=0.9)).with_coins([0.0, 0.0])[0]
        assert tokens[0].exact == pytest.approx(0.2 + 0.3 + 0.2 + 0.0)
        if len(tokens) > 1:
            assert tokens[1].exact == pytest.approx(0.1 + 0.1 + 0.2 + 0.1)


def test_for_a_greedy_draft_exact_is_the_coins_probability_for_that_token() -> None:
    greedy = OneRound(
        log(P), proposal_of(log(Q), [2, 0], WARM, greedy=True), Knob(rule="exact"), WARM
    )

    first, recovered = greedy.with_coins([0.0, 0.5])[0]

    assert (first.exact, recovered.exact) == (pytest.approx(0.2), pytest.approx(0.1))
    assert (first.draft_probability, recovered.draft_probability) == (1.0, 0.0)
    assert first.divergence == pytest.approx(JS[0], abs=1e-6)  # of the rows, not the point


def test_every_whole_row_divergence_is_recorded_whatever_the_knob_compares() -> None:
    expected = divergence.spectrum(log(P[:2]), log(Q)).tolist()

    for knob in (Knob(rule="exact"), Knob(divergence="tv", form="random"), Knob(rule="typical")):
        tokens = round_of([0, 1], knob).with_coins([0.0, 0.999])[0]
        for token, spectrum in zip(tokens, expected, strict=False):
            assert token.spectrum == pytest.approx(spectrum, rel=1e-4)


@pytest.mark.parametrize("name", divergence.WHOLE_ROW)
def test_the_knobs_own_divergence_is_the_one_compared_and_recorded(name: str) -> None:
    expected = divergence.WHOLE_ROW[name](log(P[:2]), log(Q))
    round = round_of([0, 1], Knob(rule="fsd-paper", divergence=name, threshold=INF))

    tokens = round.with_coins([0.5, 0.5])[0]

    assert [token.divergence for token in tokens[:2]] == pytest.approx(expected.tolist(), rel=1e-4)


def test_divergences_are_of_the_rows_before_temperature_and_filters_by_default() -> None:
    shaped = Sampling(temperature=0.5, top_k=2)
    raw = round_of([0, 1], Knob(rule="exact"), shaped)
    processed = round_of([0, 1], Knob(rule="exact", on_processed=True), shaped)

    squared_p = [p * p / (0.5**2 + 0.3**2) for p in (0.5, 0.3)]
    squared_q = [q * q / (0.4**2 + 0.3**2) for q in (0.3, 0.4)]
    expected = divergence.js(
        log([[squared_p[0], squared_p[1], 0, 0]]), log([[0, squared_q[0], squared_q[1], 0]])
    )
    assert raw.with_coins([0, 0])[0][0].divergence == pytest.approx(JS[0], abs=1e-6)
    assert processed.with_coins([0, 0])[0][0].divergence == pytest.approx(expected.item(), abs=1e-5)


def test_at_temperature_zero_the_divergence_is_still_that_of_the_rows() -> None:
    frozen = Sampling(temperature=0.0)
    for on_processed in (False, True):
        knob = Knob(rule="fsd", threshold=0.1, on_processed=on_processed)
        first = round_of([2, 0], knob, frozen).with_coins([0.5, 0.5])[0][0]
        assert first.divergence == pytest.approx(JS[0], abs=1e-6)


def test_at_temperature_zero_the_threshold_can_still_admit_another_token_than_the_likeliest() -> (
    None
):
    frozen = Sampling(temperature=0.0)

    strict = round_of([2, 3], Knob(rule="fsd", threshold=0.0), frozen)
    fuzzy = round_of([2, 3], Knob(rule="fsd", threshold=0.1), frozen)

    assert (ids(strict, [0.0, 0.0]), origins(strict, [0.0, 0.0])) == ([0], ["recovered"])
    assert ids(fuzzy, [0.0, 0.0]) == [2, 3, 2]
    assert origins(fuzzy, [0.0, 0.0]) == ["fuzzy", "accepted", "bonus"]


@pytest.mark.parametrize("rule", RULES)
def test_the_first_positions_are_exact_whatever_the_rule(rule: str) -> None:
    knob = Knob(rule=rule, threshold=0.9)
    guarded = [round_of([2, 2], knob, exact_positions=count) for count in (0, 1, 2, 5)]

    assert origins(guarded[1], [0.51, 0.0])[0] == "recovered"
    assert origins(guarded[1], [0.49, 0.0])[0] == "accepted"
    weights = guarded[1].with_coins([0.51, 0.0])[1]
    assert weights.tolist() == near([1, 0, 0, 0])

    both_exact = guarded[2].with_coins([0.0, 0.999])
    assert [token.origin for token in both_exact[0]] == ["accepted", "accepted", "bonus"]
    assert guarded[3].with_coins([0.0, 0.999])[0] == both_exact[0]


def test_after_the_exact_positions_the_rule_takes_over() -> None:
    guarded = round_of([0, 1], Knob(rule="fsd", threshold=0.3), exact_positions=1)
    all_exact = round_of([0, 1], Knob(rule="fsd", threshold=0.3), exact_positions=2)

    assert origins(guarded, [0.0, 0.9]) == ["accepted", "fuzzy", "bonus"]
    assert origins(all_exact, [0.0, 0.9]) == ["accepted", "recovered"]


def test_a_rejection_after_the_exact_positions_is_replaced_by_the_rules_own_law() -> None:
    paper = Knob(rule="fsd-paper", threshold=0.0)

    inside = round_of([0, 1], paper, exact_positions=2).with_coins([0.0, 0.9])[1]
    outside = round_of([0, 1], paper, exact_positions=1).with_coins([0.0, 0.9])[1]

    assert inside.tolist() == near([0, 0, 0, 1])
    assert outside.tolist() == near(P[1])


BANNING = [
    Sampling(temperature=1.0, top_k=2),
    Sampling(temperature=1.0, top_p=0.7),
    Sampling(temperature=1.0, min_p=0.5),
    Sampling(temperature=0.0, top_k=2),
    Sampling(temperature=0.0, top_p=0.7),
    Sampling(temperature=0.0, min_p=0.5),
]


@pytest.mark.parametrize("sampling", BANNING, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_admits_a_token_that_the_users_filters_rule_out(
    rule: str, sampling: Sampling
) -> None:
    """Token 2 is the draft's likeliest and outside the target's filters."""
    knob = Knob(rule=rule, threshold=1.0)
    round = round_of([2, 2], knob, sampling)

    tokens, weights = round.with_coins([0.0, 0.0])

    assert [token.origin for token in tokens] == ["recovered"]
    assert tokens[0].id in (0, 1)
    assert weights[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_admits_a_token_that_a_bias_bans(rule: str, temperature: float) -> None:
    sampling = Sampling(temperature=temperature)
    banned = log([[0.5, 0.3, 0.0, 0.2], P[1], P[2]])
    round = OneRound(
        banned, proposal_of(log(Q), [2, 2], sampling), Knob(rule=rule, threshold=1.0), sampling
    )

    tokens, weights = round.with_coins([0.0, 0.0])

    assert tokens[0].origin == "recovered"
    assert weights[2] == 0


def test_a_residual_that_vanished_by_rounding_gives_way_to_the_target() -> None:
    same = round_of([0, 1], Knob(rule="fsd-paper", threshold=0.0), draft=P[:2])
    exactly = replace(same, knob=Knob(rule="exact"))

    weights = exactly.with_coins([1.0, 1.0])[1]

    assert weights.tolist() == near(P[0])


def test_without_drafts_one_token_comes_from_the_target() -> None:
    alone = OneRound(log(P[:1]), None, Knob(), WARM)

    (token,), weights = alone.with_coins([])

    assert weights.tolist() == near(P[0])
    assert (token.id, token.origin) == (0, "target")
    assert token.target_probability == pytest.approx(0.5)
    assert (token.draft_probability, token.divergence, token.exact) == (None, None, None)


BROKEN = [math.nan, INF, -INF]


def broken_row(value: float) -> list[float]:
    return [0.0, value, 0.0, 0.0] if value != -INF else [-INF] * 4


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("form", ["full", "random"])
def test_a_target_row_that_is_no_distribution_stops_the_reply_with_one_clear_line(
    rule: str, value: float, form: str
) -> None:
    for position in range(3):
        logits = log(P)
        logits[position] = torch.tensor(broken_row(value))
        proposal = proposal_of(log(Q), [0, 2], WARM)
        knob = Knob(rule=rule, threshold=1.0, form=form)
        round = OneRound(logits, proposal, knob, WARM)
        with pytest.raises(NonFiniteTarget, match="no probability distribution") as raised:
            round.with_coins([0.0, 0.0])
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("row", "is_one"),
    [
        ([0.0, 1.0, 0.5], True),
        ([-INF, 0.0, -INF], True),
        ([1e4, -1e4, 0.0], True),
        ([INF, 0.0, 0.0], False),
        ([0.0, 0.0, INF], False),
        ([math.nan, 0.0, 0.0], False),
        ([0.0, math.nan, 1.0], False),
        ([-INF, -INF, -INF], False),
    ],
)
@pytest.mark.parametrize(
    "sampling",
    [
        WARM,
        Sampling(0.0),
        Sampling(1e-38),
        Sampling(0.7, top_k=1),
        Sampling(1.3, top_p=0.2),
        Sampling(0.0, top_p=0.2),
        Sampling(1.0, min_p=0.2),
    ],
)
def test_only_rows_without_nan_or_infinity_and_with_some_mass_are_distributions(
    sampling: Sampling, row: list[float], is_one: bool
) -> None:
    rows = torch.tensor([row, [0.0, 0.0, 0.0]])

    assert TargetRows.of(rows, rows, sampling).usable.tolist() == [is_one, True]


def test_half_precision_that_overflowed_is_no_distribution() -> None:
    overflowed = (torch.tensor([[60_000.0, 1.0]], dtype=torch.float16) * 2).float()

    assert TargetRows.of(overflowed, overflowed, WARM).usable.tolist() == [False]


def test_a_broken_row_after_the_first_rejection_does_not_matter() -> None:
    logits = log(P)
    logits[2] = math.nan

    tokens = OneRound(logits, proposal_of(log(Q), [2, 2], WARM), Knob(rule="exact"), WARM)

    assert origins(tokens, [0.51, 0.0]) == ["recovered"]


@pytest.mark.parametrize("value", BROKEN)
def test_a_target_alone_whose_row_is_no_distribution_stops_the_reply(value: float) -> None:
    with pytest.raises(NonFiniteTarget):
        OneRound(torch.tensor([broken_row(value)]), None, Knob(), WARM).verify()


@pytest.mark.parametrize("drafted", [True, False])
def test_settings_that_leave_no_token_at_all_stop_the_reply_instead_of_inventing_one(
    drafted: bool,
) -> None:
    given = torch.tensor([[0.0, -INF, -INF, -INF]]).expand(3 if drafted else 1, -1)
    banned = given.masked_fill(torch.arange(4) == 0, -INF)
    proposal = proposal_of(log(Q), [0, 1], WARM) if drafted else None

    with pytest.raises(NonFiniteTarget, match="leaves no token"):
        verify(
            TargetRows.of(given, banned, WARM),
            proposal,
            Knob(),
            torch.tensor(0.1),
            0,
            torch.Generator(),
        )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", BROKEN)
def test_a_draft_row_that_is_no_distribution_counts_as_rejected(rule: str, value: float) -> None:
    draft = log(Q)
    draft[1] = torch.tensor(broken_row(value))
    round = OneRound(log(P), proposal_of(draft, [0, 1], WARM), Knob(rule=rule, threshold=INF), WARM)

    tokens, weights = round.with_coins([0.0, 0.0])

    assert [token.origin for token in tokens] == ["accepted", "recovered"]
    assert weights.tolist() == near(P[1])
    assert tokens[1].divergence == INF
    assert tokens[1].spectrum == (INF,) * 5
    assert (tokens[1].draft_probability, tokens[1].exact) == (0.0, 0.0)


def test_a_draft_whose_own_settings_left_nothing_counts_as_rejected() -> None:
    proposal = proposal_of(log(Q), [0, 1], WARM)
    emptied = Proposal(
        proposal.tokens,
        torch.full_like(proposal.drawn_from, math.nan),
        proposal.log_raw,
        (torch.full((2, 4), -INF),),
        torch.tensor([False, False]),
    )

    tokens, weights = OneRound(log(P), emptied, Knob(threshold=INF), WARM).with_coins([0, 0])

    assert [token.origin for token in tokens] == ["recovered"]
    assert weights.tolist() == near(P[0])


def test_ids_of_a_large_vocabulary_come_through_exactly() -> None:
    vocabulary, token = 262_145, 262_143
    logits = torch.zeros(2, vocabulary)
    logits[:, token] = 50.0
    round = OneRound(logits, proposal_of(logits[:1], [token], WARM), Knob(), WARM)

    assert [each.id for each in round.verify()] == [token, token]


def test_the_same_seed_verifies_in_the_same_way() -> None:
    round = exact([2, 1])

    assert [round.verify(seed) for seed in range(20)] == [round.verify(seed) for seed in range(20)]
    assert len({round.verify(seed) for seed in range(20)}) > 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafts", [0, 1, 2, 7])
def test_a_round_comes_to_the_host_in_one_transfer_however_many_drafts_it_has(
    rule: str, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(drafts + 1, 4, generator=torch.Generator().manual_seed(1))
    proposal = proposal_of(logits[:drafts], [0] * drafts, WARM) if drafts else None
    round = OneRound(logits, proposal, Knob(rule=rule, form="top-k", form_k=2), WARM, 1)
    transfers = []
    for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"):
        original = getattr(Tensor, name)

        def counted(self: Tensor, *given: Any, name: str = name, original: Any = original) -> Any:
            transfers.append(name)
            return original(self, *given)

        monkeypatch.setattr(Tensor, name, counted)

    round.verify()

    assert transfers == ["tolist"]
