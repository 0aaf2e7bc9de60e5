"""What holds for any models, prompts, rules, settings and interruptions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from table_models import TableModel, check_caches, draft_for, write_reply
from torch import Tensor

from fsd_chat.decoding.drafting import Drafter, FirstThatHas, ModelDrafter, PromptLookup
from fsd_chat.decoding.lookahead import Adaptive, Fixed, Heuristic, Lookahead, Recorded
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.records import Round
from fsd_chat.decoding.rules import RULES
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping

VOCABULARY = 7
CPU = torch.device("cpu")

rule_names = st.sampled_from([*RULES, "target-only"])
thresholds = st.sampled_from([0.0, 1e-4, 0.02, 0.1, 0.3, 0.69, 1.0])
knobs = st.builds(
    Knob,
    rule=rule_names,
    threshold=thresholds,
    divergence=st.sampled_from(["js", "kl-draft-target", "kl-target-draft", "tv"]),
    form=st.sampled_from(["full", "top-k", "top-p", "random"]),
    form_k=st.integers(1, 8),
    form_p=st.floats(0.1, 1.0),
    on_processed=st.booleans(),
)
filters = {
    "top_k": st.sampled_from([0, 1, 2, 5]),
    "top_p": st.sampled_from([1.0, 0.8, 0.3]),
    "min_p": st.sampled_from([0.0, 0.1, 0.6]),
    "greedy_draft": st.booleans(),
}
repetition = st.sampled_from([1.0, 1.3, 0.8])
temperatures = st.sampled_from([0.0, 0.3, 1.0, 1.6])
samplings = st.builds(
    Sampling,
    temperature=temperatures,
    repetition_penalty=repetition,
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, 5), st.sampled_from([1.0, -math.inf]), max_size=2),
    **filters,
)
greedy_samplings = st.builds(
    Sampling, temperature=st.just(0.0), repetition_penalty=repetition, **filters
)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
seeds = st.integers(0, 2**40)


@dataclass(frozen=True)
class Setup:
    """A random pair, ready to write; `fresh` gives one just like it that has read nothing."""

    model_seed: int
    noise: float
    drafting: str
    target_limit: int
    draft_limit: int

    def fresh(self) -> tuple[TableModel, Drafter | None]:
        target = TableModel(VOCABULARY, self.model_seed, limit=self.target_limit)
        model = ModelDrafter(draft_for(target, self.noise, limit=self.draft_limit))
        lookup = PromptLookup(VOCABULARY, CPU)
        drafters = {
            "model": model,
            "lookup": lookup,
            "both": FirstThatHas([lookup, model]),
            "none": None,
        }
        return target, drafters[self.drafting]


setups = st.builds(
    Setup,
    model_seed=st.integers(0, 50),
    noise=st.sampled_from([0.0, 0.5, 1.5, 5.0]),
    drafting=st.sampled_from(["model", "model", "both", "lookup", "none"]),
    target_limit=st.sampled_from([8, 15, 10_000]),
    draft_limit=st.sampled_from([7, 12, 10_000]),
)
lookaheads = st.one_of(
    st.integers(0, 6).map(lambda count: lambda: Fixed(count)),
    st.lists(st.integers(0, 7), max_size=30).map(lambda lengths: lambda: Recorded(lengths)),
    st.just(Heuristic),
    st.just(Adaptive),
)


class Turning:
    """Turns the knob before given rounds: the settings timeline of a reply."""

    def __init__(self, timeline: Sequence[Knob]) -> None:
        self.timeline = timeline
        self.live = LiveKnob(timeline[0])
        self.rounds: list[Round] = []

    def __call__(self, round: Round) -> None:
        self.rounds.append(round)
        self.live.current = self.timeline[len(self.rounds) % len(self.timeline)]


timelines = st.lists(knobs, min_size=1, max_size=8)


def recount(rounds: Sequence[Round]) -> dict[str, int]:
    counts = dict.fromkeys(("accepted", "fuzzy", "recovered", "bonus", "target"), 0)
    for round in rounds:
        for token in round.tokens:
            counts[token.origin] += 1
    return counts


def check_round(round: Round, turned: Knob) -> None:
    """What every round must be, whatever it is made of."""
    origins = [token.origin for token in round.tokens]
    kept = [token for token in round.tokens if token.origin in ("accepted", "fuzzy")]
    assert origins[: len(kept)] == [token.origin for token in kept]
    assert origins[len(kept) :] in (["recovered"], ["bonus"], ["target"], [])
    assert round.knob == turned
    assert round.accepted == len(kept) <= round.verified <= round.drafted
    if "bonus" in origins:
        assert len(kept) == round.drafted
    if "target" in origins:
        assert round.drafted == 0
    if round.finish is None:
        assert origins[-1] in ("recovered", "bonus", "target")
    for token in round.tokens:
        drafted = token.origin in ("accepted", "fuzzy", "recovered")
        assert (token.divergence is not None) == (token.exact is not None) == drafted
        assert len(token.spectrum) == (5 if drafted else 0)
        assert (token.rejected is not None) == (token.origin == "recovered")
        assert 0 <= token.target_probability <= 1.0001


def check_rule(round: Round, exact_prefix: int) -> None:
    """Origins agree with the divergences recorded beside them."""
    knob = round.knob
    for i, token in enumerate(round.tokens):
        if token.divergence is None:
            continue
        within = token.divergence <= knob.threshold
        exactly = round.index + i < exact_prefix or knob.rule == "exact"
        if token.origin == "fuzzy":
            assert not exactly
        if knob.rule == "fsd" and token.origin == "fuzzy":
            assert within
            assert knob.threshold > 0
        if knob.rule == "fsd-paper" and not exactly and token.origin in ("accepted", "fuzzy"):
            assert within


@given(
    setups, prompts, timelines, samplings, lookaheads, seeds, st.integers(0, 30), st.integers(0, 9)
)
@settings(max_examples=120)
def test_caches_counts_and_origins_hold_after_every_round(
    setup: Setup,
    prompt: list[int],
    timeline: list[Knob],
    sampling: Sampling,
    lookahead: type[Lookahead],
    seed: int,
    max_tokens: int,
    exact_prefix: int,
) -> None:
    """`write_reply` compares both caches with the text after every round, and the models refuse
    to be overrun."""
    target, drafter = setup.fresh()
    turning = Turning(timeline)
    committed = list(prompt)

    rounds = write_reply(
        target,
        drafter,
        committed,
        knob=turning.live,
        sampling=sampling,
        lookahead=lookahead(),
        max_tokens=max_tokens,
        end_ids=[6],
        seed=seed,
        exact_prefix=exact_prefix,
        after_round=turning,
    )

    said = committed[len(prompt) :]
    for i, round in enumerate(rounds):
        check_round(round, timeline[i % len(timeline)])
        check_rule(round, exact_prefix)
        assert round.index == sum(len(before.tokens) for before in rounds[:i])
        assert (round.finish is not None) == (i == len(rounds) - 1)
    assert [token.id for round in rounds for token in round.tokens] == said
    counts = recount(rounds)
    assert sum(counts.values()) == len(said) <= max_tokens
    assert counts["accepted"] + counts["fuzzy"] == sum(round.accepted for round in rounds)
    assert counts["recovered"] == sum(round.verified - round.accepted for round in rounds)
    assert 6 not in said[:-1]
    finish = rounds[-1].finish
    assert (finish == "end") == (said[-1:] == [6])
    if finish == "length":
        assert len(said) == max_tokens
    if finish == "context":
        assert len(committed) >= target.limit


@given(setups, prompts, timelines, samplings, lookaheads, seeds)
@settings(max_examples=50)
def test_the_same_seed_timeline_and_draft_lengths_write_the_same_reply(
    setup: Setup,
    prompt: list[int],
    timeline: list[Knob],
    sampling: Sampling,
    lookahead: type[Lookahead],
    seed: int,
) -> None:
    def reply(lookahead: Lookahead) -> list[Round]:
        target, drafter = setup.fresh()
        turning = Turning(timeline)
        return write_reply(
            target,
            drafter,
            list(prompt),
            knob=turning.live,
            sampling=sampling,
            lookahead=lookahead,
            seed=seed,
            max_tokens=16,
            after_round=turning,
        )

    first = reply(lookahead())
    again = reply(Recorded([round.drafted for round in first]))

    assert [round.tokens for round in again] == [round.tokens for round in first]
    assert [round.knob for round in again] == [round.knob for round in first]


class Interrupted(Exception):
    pass


class Fragile(TableModel):
    """Raises in one of its forwards, with part of the tokens already in the cache."""

    forwards_left = -1
    breaks_after = 0

    def forward(self, tokens: Tensor, rows: int) -> Tensor:
        if self.forwards_left == 0:
            self.forwards_left = -1
            self.tokens += tokens.tolist()[: self.breaks_after]
            raise Interrupted
        self.forwards_left -= 1
        return super().forward(tokens, rows)


@given(
    prompts,
    greedy_samplings,
    st.integers(0, 50),
    st.lists(
        st.one_of(
            st.tuples(st.just("closed"), st.integers(0, 4), st.just(0)),
            st.tuples(st.sampled_from(["target", "draft"]), st.integers(0, 8), st.integers(0, 4)),
        ),
        max_size=4,
    ),
    st.integers(0, 5),
)
@settings(max_examples=60)
def test_stopping_anywhere_and_going_on_equals_never_having_stopped(
    prompt: list[int],
    sampling: Sampling,
    model_seed: int,
    interruptions: list[tuple[str, int, int]],
    drafts: int,
) -> None:
    whole, strict = list(prompt), Knob(rule="exact")
    write_reply(TableModel(VOCABULARY, model_seed), None, whole, sampling=sampling, max_tokens=24)

    target = Fragile(VOCABULARY, model_seed)
    draft = Fragile(VOCABULARY, model_seed)
    draft.table = draft_for(target, noise=1.0).table
    drafter = ModelDrafter(draft)
    committed = list(prompt)
    for kind, after, breaks_after in interruptions:
        left = len(whole) - len(committed)
        if left == 0:
            break
        list(prefill(target, committed[:-1]))
        if kind != "closed":
            fragile = target if kind == "target" else draft
            fragile.forwards_left, fragile.breaks_after = after, breaks_after
        stopping = Stopping(frozenset(), left)
        reply = Reply(LiveKnob(strict), sampling, stopping, seed=1, lookahead=Fixed(drafts))
        rounds = decode(target, drafter, committed, reply)
        try:
            for i, _ in enumerate(rounds):
                if kind == "closed" and i >= after:
                    break
        except Interrupted:
            pass
        rounds.close()
        target.forwards_left = draft.forwards_left = -1
        check_caches(target, drafter, committed)
        assert committed == whole[: len(committed)]

    left = len(whole) - len(committed)
    if left:
        write_reply(target, drafter, committed, knob=strict, sampling=sampling, max_tokens=left)
    assert committed == whole


ALWAYS_ACCEPTING = st.one_of(
    st.builds(Knob, rule=st.just("exact"), threshold=thresholds),
    st.builds(Knob, rule=st.just("fsd"), threshold=thresholds),
    st.builds(Knob, rule=st.just("fsd-paper"), threshold=thresholds.filter(lambda T: T >= 1e-4)),
)


@given(st.integers(0, 50), prompts, ALWAYS_ACCEPTING, samplings, st.integers(1, 6), seeds)
@settings(max_examples=60)
def test_a_draft_that_is_the_target_is_always_accepted(
    model_seed: int,
    prompt: list[int],
    knob: Knob,
    sampling: Sampling,
    drafts: int,
    seed: int,
) -> None:
    """A greedy draft of a target that samples is another distribution, whatever the model."""
    assume(knob.rule == "fsd-paper" or sampling.temperature == 0 or not sampling.greedy_draft)
    target = TableModel(VOCABULARY, model_seed)

    rounds = write_reply(
        target,
        ModelDrafter(draft_for(target, noise=0)),
        list(prompt),
        knob=knob,
        sampling=sampling,
        lookahead=drafts,
        max_tokens=16,
        seed=seed,
    )

    assert all(round.accepted == round.verified == round.drafted for round in rounds)
    assert sum(round.drafted for round in rounds) > 0


@given(setups, prompts, timelines, samplings, seeds)
@settings(max_examples=60)
def test_what_the_users_settings_rule_out_is_never_said(
    setup: Setup, prompt: list[int], timeline: list[Knob], sampling: Sampling, seed: int
) -> None:
    """The draft knows nothing of the target's settings; token 2 is banned besides."""
    target, drafter = setup.fresh()
    assume(isinstance(drafter, ModelDrafter))
    strict = replace(sampling, logit_bias={2: -math.inf}, presence_penalty=0, frequency_penalty=0)

    class Unaware(ModelDrafter):
        def begin(self, sampling: Sampling, prompt: Sequence[int], seed: int) -> None:
            super().begin(Sampling(temperature=2.0), prompt, seed)

    drafter = Unaware(drafter.model)
    turning = Turning(timeline)
    committed = list(prompt)
    rounds = write_reply(
        target,
        drafter,
        committed,
        knob=turning.live,
        sampling=strict,
        seed=seed,
        max_tokens=16,
        after_round=turning,
    )

    at = len(prompt)
    for round in rounds:
        for token in round.tokens:
            admitted = admitted_tokens(target, committed[:at], prompt, strict)
            assert token.id in admitted
            at += 1


def admitted_tokens(
    target: TableModel, context: list[int], prompt: list[int], sampling: Sampling
) -> set[int]:
    """By hand: penalty, ban, temperature, then the k likeliest, the nucleus and the min-p bar."""
    logits = target.logits_after(context).tolist()
    for token in set(context):
        penalty = sampling.repetition_penalty
        logits[token] *= 1 / penalty if logits[token] > 0 else penalty
    del logits[2:3]
    temperature = sampling.temperature or 1.0
    names = [token for token in range(VOCABULARY) if token != 2]
    ordered = sorted(zip(logits, names, strict=True), reverse=True)
    if sampling.top_k:
        ordered = ordered[: sampling.top_k]
    weights = [math.exp((logit - ordered[0][0]) / temperature) for logit, _ in ordered]
    total, before = sum(weights), 0.0
    nucleus = []
    for weight, (_, token) in zip(weights, ordered, strict=True):
        # Rounding may decide a tie either way; what is clearly outside must stay outside.
        if before / total < sampling.top_p + 1e-5:
            nucleus.append((weight, token))
        before += weight
    best = nucleus[0][0]
    return {token for weight, token in nucleus if weight >= best * sampling.min_p * (1 - 1e-5)}


@given(setups, prompts, greedy_samplings, lookaheads, st.sampled_from(["exact", "fsd"]))
@settings(max_examples=50)
def test_greedy_decoding_without_a_threshold_does_not_depend_on_the_drafting(
    setup: Setup,
    prompt: list[int],
    sampling: Sampling,
    lookahead: type[Lookahead],
    rule: str,
) -> None:
    target, drafter = setup.fresh()
    alone, drafted = list(prompt), list(prompt)
    write_reply(target, None, alone, sampling=sampling, max_tokens=16)
    target, drafter = setup.fresh()

    write_reply(
        target,
        drafter,
        drafted,
        knob=Knob(rule=rule, threshold=0.0),
        sampling=sampling,
        lookahead=lookahead(),
        max_tokens=16,
        seed=5,
    )

    shorter = min(len(alone), len(drafted))
    assert alone[:shorter] == drafted[:shorter]
    assert abs(len(alone) - len(drafted)) <= 1  # where the context ends, a bonus may still fit


def test_the_examples_do_exercise_every_origin_and_every_finish() -> None:
    """Or the properties would hold of nothing."""
    origins: set[str] = set()
    finishes: set[str | None] = set()
    for seed in range(30):
        setup = Setup(seed % 5, 1.0, "model", 20 if seed % 2 else 10_000, 10_000)
        target, drafter = setup.fresh()
        timeline = [Knob(rule="fsd", threshold=0.1), Knob(rule="target-only"), Knob(rule="exact")]
        turning = Turning(timeline)
        rounds = write_reply(
            target,
            drafter,
            [1, 2],
            knob=turning.live,
            end_ids=[6],
            seed=seed,
            max_tokens=30,
            after_round=turning,
        )
        origins |= {token.origin for round in rounds for token in round.tokens}
        finishes.add(rounds[-1].finish)
    assert origins == {"accepted", "fuzzy", "recovered", "bonus", "target"}
    assert finishes >= {"end", "length"} or finishes >= {"end", "context"}


@pytest.mark.parametrize("profile", ["ci", "mutations"])
def test_examples_are_the_same_in_every_run(profile: str) -> None:
    assert settings.get_profile(profile).derandomize
