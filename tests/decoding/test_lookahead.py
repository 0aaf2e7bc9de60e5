"""How many tokens are drafted, from what the rounds before brought and cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fsd_chat.decoding.divergence import WHOLE_ROW
from fsd_chat.decoding.lookahead import (
    Adaptive,
    Fixed,
    Heuristic,
    Lookahead,
    Recorded,
    lookahead,
)
from fsd_chat.decoding.records import Origin, Round, Token
from fsd_chat.decoding.settings import Knob

FSD = Knob(rule="fsd", threshold=0.1)
PAPER = Knob(rule="fsd-paper", threshold=0.1)


def judged(origin: Origin, divergence: float = 0.05, exact: float = 0.5) -> Token:
    """A verified position whose whole-row divergences are 1, 2, … times the one compared."""
    spectrum = tuple(divergence * factor for factor in range(1, 1 + len(WHOLE_ROW)))
    return Token(0, origin, 0.5, 0.5, divergence, exact, spectrum=spectrum)


def round_of(
    tokens: Iterable[Token],
    drafted: int,
    knob: Knob = FSD,
    step_s: float = 0.01,
    verify_s: float | None = None,
) -> Round:
    """Costs by default: 10 ms per draft step, 100 ms for one row, 5 ms for each further one."""
    verify = 0.1 + 0.005 * drafted if verify_s is None else verify_s
    draft = step_s * drafted
    return Round(0, tuple(tokens), drafted, knob, draft, verify, draft + verify)


def kept_all(drafted: int, **keywords: object) -> Round:
    tokens = [judged("accepted")] * drafted + [Token(0, "bonus", 0.5)]
    return round_of(tokens, drafted, **keywords)  # type: ignore[arg-type]


def kept_none(drafted: int, divergence: float = 0.5, **keywords: object) -> Round:
    rejected = judged("recovered", divergence, exact=0.0)
    return round_of([rejected], drafted, **keywords)  # type: ignore[arg-type]


def undrafted(verify_s: float = 0.1) -> Round:
    return round_of([Token(0, "target", 0.5)], 0, verify_s=verify_s)


def taught(*rounds: Round) -> Adaptive:
    """Knows the costs: the first round warms up, the second is timed, then one without drafts."""
    policy = Adaptive(first=(Adaptive.START, 0))
    for round in rounds:
        policy.observe(round)
    return policy


def test_a_fixed_length_stays_whatever_happens() -> None:
    policy = Fixed(3)
    for round in (kept_all(3), kept_none(3)):
        assert policy.length(FSD) == 3
        policy.observe(round)
    assert policy.length(replace(FSD, threshold=0.6)) == 3


def test_the_papers_schedule_is_five() -> None:
    assert lookahead("paper").length(FSD) == 5


def test_the_heuristic_goes_up_two_after_full_acceptance_and_down_one_otherwise() -> None:
    policy = Heuristic()
    lengths = []
    for round in (kept_all(5), kept_all(7), kept_none(9), kept_none(8), kept_none(7)):
        lengths.append(policy.length(FSD))
        policy.observe(round)

    assert lengths == [5, 7, 9, 8, 7]


def test_the_heuristic_stays_between_one_and_its_most() -> None:
    policy = Heuristic(start=2, most=4)
    for _ in range(5):
        policy.observe(kept_none(1))
    assert policy.length(FSD) == 1
    for _ in range(5):
        policy.observe(kept_all(1))
    assert policy.length(FSD) == 4


def test_the_heuristic_learns_nothing_from_a_round_without_drafts() -> None:
    policy = Heuristic()
    policy.observe(undrafted())
    assert policy.length(FSD) == 5


def test_recorded_lengths_come_back_in_order_and_then_none() -> None:
    policy = Recorded([4, 0, 2])

    assert [policy.length(FSD) for _ in range(5)] == [4, 0, 2, 0, 0]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adaptive", Adaptive), ("paper", Fixed), ("heuristic", Heuristic), ("0", Fixed)],
)
def test_a_length_is_chosen_by_name(name: str, kind: type[Lookahead]) -> None:
    assert isinstance(lookahead(name), kind)


@pytest.mark.parametrize("name", ["", "fast", "-1", "2.5"])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="draft length must be"):
        lookahead(name)


def test_adaptive_first_tries_drafting_and_then_the_target_alone() -> None:
    policy = Adaptive()
    lengths = []
    for _ in range(6):
        lengths.append(policy.length(FSD))
        drafted = lengths[-1]
        policy.observe(kept_all(drafted) if drafted else undrafted())

    assert lengths == [Adaptive.START, Adaptive.START, 0, 1, 2, policy.most]


def test_adaptive_drafts_far_when_everything_is_accepted_and_drafting_is_cheap() -> None:
    policy = taught(kept_all(4), kept_all(4), undrafted())

    assert policy.length(FSD) == policy.most


def test_adaptive_drafts_nothing_where_it_does_not_pay() -> None:
    never_right = taught(*[kept_none(4)] * 2, undrafted())
    as_slow_as_the_target = taught(
        *[kept_all(4, knob=PAPER, step_s=0.2)] * 2, undrafted(verify_s=0.1)
    )

    assert never_right.length(FSD) == 0
    assert as_slow_as_the_target.length(PAPER) == 0


def test_adaptive_takes_the_length_with_the_most_tokens_per_second() -> None:
    half = [judged("accepted", 0.5, exact=0.6)] * 3
    policy = taught(*[round_of(half, 4)] * 2, undrafted())
    strict = Knob(rule="exact")

    def tokens_per_second(k: int) -> float:
        tokens = sum(0.6**i for i in range(k + 1))
        return tokens / (0.01 * k + 0.1 + 0.005 * min(k, 4))

    best = max(range(policy.most + 1), key=tokens_per_second)
    assert policy.length(strict) == best
    assert 0 < best < policy.most
    for k in range(policy.most + 1):
        assert policy.gain(k, policy.acceptance(strict)) == pytest.approx(tokens_per_second(k))


def test_adaptive_probes_now_and_then_while_it_does_not_draft() -> None:
    policy = taught(*[kept_none(4)] * 2)
    lengths = []
    for _ in range(3 * Adaptive.PROBE_EVERY + 3):
        lengths.append(policy.length(FSD))
        policy.observe(kept_none(lengths[-1]) if lengths[-1] else undrafted())

    probes = [(place, length) for place, length in enumerate(lengths) if length]
    every = Adaptive.PROBE_EVERY
    assert probes == [(every, 1), (2 * every + 1, 2), (3 * every + 2, 1)]


def test_adaptive_asks_the_target_alone_now_and_then_while_it_drafts() -> None:
    """A machine that has become faster for one row only is noticed."""
    policy = taught(*[kept_all(4)] * 2, undrafted())
    lengths = []
    for _ in range(2 * Adaptive.ALONE_EVERY + 2):
        lengths.append(policy.length(FSD))
        policy.observe(kept_all(lengths[-1]) if lengths[-1] else undrafted(verify_s=0.001))
        if not lengths[-1]:
            break

    assert lengths == [policy.most] * Adaptive.ALONE_EVERY + [0]
    assert policy.verification(1) == pytest.approx(0.001, rel=0.01)
    assert policy.length(FSD) == 0


def test_adaptive_counts_what_the_judgement_costs() -> None:
    judged_slowly = replace(kept_all(1), total_s=5.0)
    policy = taught(*[judged_slowly] * 2, undrafted())

    assert policy.verification(2) == pytest.approx(5.0 - judged_slowly.draft_s)


def test_adaptive_comes_back_to_drafting_when_probes_go_well() -> None:
    policy = taught(*[kept_none(4)] * 2, undrafted())
    lengths = []
    for _ in range(200):
        lengths.append(policy.length(FSD))
        policy.observe(kept_all(lengths[-1]) if lengths[-1] else undrafted())

    assert lengths[-1] == policy.most


def test_adaptive_answers_at_once_to_a_turned_threshold() -> None:
    """Every position diverged by 0.3, and exact decoding would have accepted none of them."""
    policy = taught(*[kept_none(4, divergence=0.3)] * 2, undrafted())

    assert policy.length(replace(FSD, threshold=0.2)) == 0
    assert policy.length(replace(FSD, threshold=0.3)) == policy.most
    assert policy.length(replace(PAPER, threshold=0.3)) == policy.most
    assert policy.length(replace(FSD, threshold=0.0)) == 0
    assert policy.length(Knob(rule="exact", threshold=0.3)) == 0


def test_adaptive_takes_a_threshold_of_zero_as_exact() -> None:
    agreed = [judged("accepted", 0.0, exact=0.25)] * 3
    policy = taught(*[round_of(agreed, 3)] * 2, undrafted())

    assert policy.acceptance(replace(FSD, threshold=0.0)) == pytest.approx(0.25)
    assert policy.acceptance(replace(FSD, threshold=0.01)) == 1
    assert policy.acceptance(replace(PAPER, threshold=0.0)) == 1


def test_adaptive_reads_the_divergence_that_the_present_knob_compares() -> None:
    """`js` was compared; the recorded total variation is four times as much."""
    index = list(WHOLE_ROW).index("tv") + 1
    policy = taught(kept_none(4, divergence=0.05))

    assert policy.acceptance(Knob(divergence="tv", threshold=0.05 * index + 1e-6)) == 1
    assert policy.acceptance(Knob(divergence="tv", threshold=0.05 * index - 1e-6)) == 0


def test_adaptive_takes_what_happened_where_the_present_measure_was_not_recorded() -> None:
    policy = taught(round_of([judged("fuzzy"), judged("recovered", exact=0.0)], 2))

    assert policy.acceptance(Knob(rule="fsd", threshold=0.6, form="top-k")) == 0.5
    assert policy.acceptance(Knob(rule="fsd-paper", threshold=0.6, on_processed=True)) == 0.5


def test_adaptive_takes_other_rules_at_what_they_did() -> None:
    stayed = [judged("fuzzy", 0.5, exact=0.1), judged("recovered", 0.5, exact=0.1)]
    policy = taught(round_of(stayed, 2))

    assert policy.acceptance(Knob(rule="typical", threshold=0.6)) == 0.5


def test_adaptive_forgets_positions_long_past() -> None:
    policy = Adaptive(remembered=8)
    policy.observe(kept_none(4))
    for _ in range(4):
        policy.observe(kept_all(4))

    assert policy.acceptance(FSD) == 1


def test_adaptive_does_not_take_a_slow_first_round_for_a_measure() -> None:
    slow = kept_all(4, step_s=5.0, verify_s=9.0)
    policy = taught(slow, kept_all(4), undrafted())

    assert policy.length(FSD) == policy.most


def test_adaptive_between_measured_row_counts_goes_straight_from_one_to_the_other() -> None:
    policy = taught(kept_all(4), kept_all(4, verify_s=0.2), undrafted(verify_s=0.1))

    assert policy.verification(1) == pytest.approx(0.1)
    assert policy.verification(3) == pytest.approx(0.15)
    assert policy.verification(5) == pytest.approx(0.2)
    assert policy.verification(12) == pytest.approx(0.2)


def test_adaptive_follows_a_cost_that_changes() -> None:
    policy = taught(kept_all(4), kept_all(4), undrafted())
    for _ in range(40):
        policy.observe(kept_all(4, step_s=1.0))

    assert policy.length(FSD) == 0


def test_adaptive_survives_a_clock_too_coarse_to_see_a_round() -> None:
    policy = taught(
        kept_all(4, step_s=0.0, verify_s=0.0),
        kept_all(4, step_s=0.0, verify_s=0.0),
        undrafted(verify_s=0.0),
    )

    assert 0 <= policy.length(FSD) <= policy.most


def test_adaptive_decides_the_same_way_from_the_same_rounds() -> None:
    rounds = [kept_all(4), kept_none(4), undrafted(), kept_all(2), kept_none(3)]

    first, second = taught(*rounds), taught(*rounds)

    knobs = [replace(FSD, threshold=t / 50) for t in range(30)]
    assert [first.length(k) for k in knobs] == [second.length(k) for k in knobs]
