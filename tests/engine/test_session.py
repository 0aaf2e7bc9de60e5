from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.inbox import ReplyControl
from fsd_chat.engine.messages import (
    Event,
    Failed,
    Finished,
    Generate,
    Knob,
    KnobSet,
    LoadPair,
    Message,
    ModelSource,
    Prefill,
    Role,
    Round,
    Sampling,
    Started,
)
from fsd_chat.engine.session import Session, load, ready

if TYPE_CHECKING:
    from conftest import TinyModels

GREEDY = Sampling(temperature=0.0)
ROLES: tuple[Role, Role] = ("user", "assistant")

Hook = Callable[[Event, ReplyControl], None]


def source(location: Path | str) -> ModelSource:
    return ModelSource(location=str(location), device="cpu", dtype="float32")


def pair(target: Path, draft: Path | str | None = None) -> Session:
    command = LoadPair(
        name="tiny", target=source(target), draft=None if draft is None else source(draft)
    )
    return load(command, lambda stage, fraction: None)


class Reply:
    """What `session` says to a conversation in which user and assistant take turns."""

    def __init__(
        self,
        session: Session,
        *turns: str,
        knob: Knob | None = None,
        sampling: Sampling = GREEDY,
        plain: bool = False,
        draft_lengths: tuple[int, ...] = (),
        hook: Hook | None = None,
    ) -> None:
        self.session = session
        self.events: list[Event] = []
        self._hook = hook
        messages = tuple(Message(role=ROLES[i % 2], content=turn) for i, turn in enumerate(turns))
        self.control = ReplyControl(
            Generate(
                request=1,
                messages=messages,
                knob=knob or Knob(rule="exact", lookahead="3"),
                sampling=sampling,
                plain=plain,
                draft_lengths=draft_lengths,
            )
        )
        self.events.append(session.generate(self.control, self._emit))
        assert_caches_hold_the_text(session)

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if self._hook:
            self._hook(event, self.control)

    @property
    def started(self) -> Started:
        assert isinstance(self.events[0], Started)
        return self.events[0]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.events[-1], Finished)
        return self.events[-1]

    @property
    def rounds(self) -> list[Round]:
        return [event for event in self.events if isinstance(event, Round)]

    @property
    def tokens(self) -> list[int]:
        return [token.id for round in self.rounds for token in round.tokens]

    @property
    def origins(self) -> set[str]:
        return {token.origin for round in self.rounds for token in round.tokens}

    @property
    def text(self) -> str:
        return "".join(round.text for round in self.rounds) + self.finished.text

    @property
    def reasoning(self) -> str:
        return "".join(round.reasoning for round in self.rounds) + self.finished.reasoning

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def assert_caches_hold_the_text(session: Session) -> None:
    caches = session.caches
    assert caches.target.length <= max(0, len(caches.committed) - 1)
    if caches.draft is not None:
        assert caches.draft.length <= max(0, len(caches.committed) - 1)


def after(count: int, do: Callable[[ReplyControl], None]) -> Hook:
    """Do something when `count` rounds have been told."""
    rounds = 0

    def hook(event: Event, control: ReplyControl) -> None:
        nonlocal rounds
        rounds += isinstance(event, Round)
        if isinstance(event, Round) and rounds == count:
            do(control)

    return hook


def stop(control: ReplyControl) -> None:
    control.stopped = True


@pytest.fixture(scope="module")
def letters(tiny: TinyModels) -> Path:
    return tiny.circling("letters", "abcdefghijklmnopqrstuvwxyz")


@pytest.fixture(scope="module")
def random_pair(tiny: TinyModels) -> tuple[Path, Path]:
    return tiny.random("random-target", seed=1), tiny.random("random-draft", seed=2)


# --- text ---------------------------------------------------------------------------------------


def test_a_reply_is_told_up_to_its_end_token_and_the_end_token_has_no_text(
    tiny: TinyModels,
) -> None:
    reply = Reply(pair(tiny.reciting("hello", "Helo!")), "hi")
    assert (reply.text, reply.finished.reason) == ("Helo!", "end")
    assert [token.text for round in reply.rounds for token in round.tokens] == [*"Helo!", ""]
    assert [round.index for round in reply.rounds] == list(range(6))
    assert reply.origins == {"target"}


def test_nothing_after_an_end_token_in_the_middle_of_a_round_is_told_or_cached(
    tiny: TinyModels,
) -> None:
    target = tiny.reciting("short", "Helo!")
    session = pair(target, tiny.circling("talkative", "Helo!?"))
    reply = Reply(session, "hi", knob=Knob(rule="exact", lookahead="9"))
    assert (reply.text, reply.finished.reason) == ("Helo!", "end")
    assert len(session.caches.committed) == reply.started.prompt_tokens + 6


@pytest.mark.parametrize("lookahead", ["0", "1", "2", "5"])
def test_a_character_of_several_tokens_is_told_whole(tiny: TinyModels, lookahead: str) -> None:
    target = tiny.reciting("emoji", "I 😀é語!")
    reply = Reply(pair(target, target), "hi", knob=Knob(rule="exact", lookahead=lookahead))
    assert reply.text == "I 😀é語!"
    assert not any("\ufffd" in round.text for round in reply.rounds)
    pieces = [token.text for round in reply.rounds for token in round.tokens]
    assert pieces[2:6] == ["", "", "", "😀"]


def test_an_incomplete_character_at_the_end_is_told_at_the_end(tiny: TinyModels) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=4)
    reply = Reply(pair(tiny.reciting("emoji", "I 😀é語!")), "hi", sampling=sampling)
    assert "".join(round.text for round in reply.rounds) == "I "
    assert (reply.finished.reason, reply.finished.text) == ("length", "\ufffd")


@pytest.mark.parametrize("lookahead", ["0", "1", "4", "9"])
def test_a_stop_string_across_tokens_and_rounds_is_cut_off(
    tiny: TinyModels, lookahead: str
) -> None:
    target = tiny.reciting("stopping", ["a", "b", "ST", "OP", "c", "d"])
    session = pair(target, target)
    reply = Reply(
        session,
        "hi",
        knob=Knob(rule="exact", lookahead=lookahead),
        sampling=Sampling(temperature=0.0, stop=("never", "bSTO")),
    )
    assert (reply.text, reply.finished.reason) == ("a", "stop-string")
    assert reply.finished.stop_string == "bSTO"
    assert len(reply.tokens) == 4
    assert session.caches.committed[-1] == tiny.ids("OP")[0]


@pytest.mark.parametrize(
    "tokens",
    [
        ["<think>", "h", "m", "</think>", "Y", "e", "s"],
        ["<th", "ink>", "h", "m", "</think>", "Y", "e", "s"],
        ["<think>", "h", "m", "</th", "ink>", "Y", "e", "s"],
    ],
)
def test_reasoning_is_told_apart_from_the_answer(tiny: TinyModels, tokens: list[str]) -> None:
    reply = Reply(pair(tiny.reciting("thinker-" + tokens[0] + tokens[3][:4], tokens)), "hi")
    assert (reply.reasoning, reply.text) == ("hm", "Yes")


def test_reasoning_that_the_template_opens_needs_no_tag(tiny: TinyModels) -> None:
    template = byte_template() + "{% if add_generation_prompt %}<think>\n{% endif %}"
    target = tiny.reciting("opened", ["h", "m", "</think>", "Y"], chat_template=template)
    reply = Reply(pair(target), "hi")
    assert (reply.reasoning, reply.text) == ("hm", "Y")


def byte_template() -> str:
    return (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


# --- the end ------------------------------------------------------------------------------------


def test_a_reply_has_no_more_tokens_than_were_asked_for(letters: Path) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=10)
    reply = Reply(pair(letters, letters), "hi", sampling=sampling)
    assert (reply.text, reply.finished.reason) == ("abcdefghij", "length")


def test_a_reply_ends_where_the_context_does(tiny: TinyModels) -> None:
    session = pair(tiny.circling("narrow", "abcdefgh", context=64))
    reply = Reply(session, "hi")
    assert reply.finished.reason == "context"
    assert reply.started.prompt_tokens + len(reply.tokens) in (64, 65)


def test_the_oldest_turns_are_dropped_where_the_context_is_too_small(tiny: TinyModels) -> None:
    session = pair(tiny.circling("narrow", "abcdefgh", context=64))
    whole = Reply(session, "hi")
    reply = Reply(session, "o" * 60, "x", "hi")
    assert (whole.started.dropped_turns, reply.started.dropped_turns) == (0, 2)
    assert reply.started.prompt_tokens == whole.started.prompt_tokens


def test_a_prompt_that_cannot_fit_is_refused_with_both_numbers(tiny: TinyModels) -> None:
    session = pair(tiny.circling("narrow", "abcdefgh", context=64))
    with pytest.raises(EngineError, match=r"\d\d\d tokens .* holds 64") as refused:
        Reply(session, "o" * 200)
    assert refused.value.kind == "context"
    assert Reply(session, "hi").finished.reason == "context"


# --- stopping and going on ----------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3])
def test_stopping_takes_effect_within_one_round(letters: Path, rounds: int) -> None:
    reply = Reply(pair(letters, letters), "hi", hook=after(rounds, stop))
    assert len(reply.rounds) == rounds
    assert reply.finished.reason == "stopped"


def test_stopping_takes_effect_within_one_chunk_of_the_prompt(letters: Path) -> None:
    def stop_at_the_second(event: Event, control: ReplyControl) -> None:
        if isinstance(event, Prefill) and event.done:
            control.stopped = True

    session = pair(letters, letters)
    reply = Reply(session, "x" * 1000, hook=stop_at_the_second)
    assert (reply.rounds, reply.finished.reason) == ([], "stopped")
    done = reply.of(Prefill)[-1]
    assert isinstance(done, Prefill)
    assert 0 < done.done < 200
    again = Reply(session, "x" * 1000, sampling=Sampling(temperature=0.0, max_tokens=3))
    assert again.started.cached_tokens == done.done
    assert again.text == "abc"


def test_a_reply_stopped_before_it_began_has_no_rounds(letters: Path) -> None:
    def stop_at_once(event: Event, control: ReplyControl) -> None:
        control.stopped = True

    reply = Reply(pair(letters), "hi", hook=stop_at_once)
    assert (reply.rounds, reply.finished.reason) == ([], "stopped")


def test_reading_the_prompt_is_told_from_nothing_to_all_of_it(letters: Path) -> None:
    reply = Reply(
        pair(letters, letters), "x" * 300, sampling=Sampling(temperature=0.0, max_tokens=2)
    )
    told = [event for event in reply.events if isinstance(event, Prefill)]
    assert told[0].done == 0
    assert told[-1].done == told[-1].total == 2 * (reply.started.prompt_tokens - 1)
    assert [event.done for event in told] == sorted(event.done for event in told)


# --- what stays cached --------------------------------------------------------------------------


def test_the_next_turn_reads_only_what_is_new(letters: Path) -> None:
    session = pair(letters, letters)
    limit = Sampling(temperature=0.0, max_tokens=7)
    first = Reply(session, "hi", sampling=limit)
    second = Reply(session, "hi", first.text, "go on", sampling=limit)
    assert second.started.cached_tokens == first.started.prompt_tokens + 7 - 1
    told = second.of(Prefill)[-1]
    assert isinstance(told, Prefill)
    new = second.started.prompt_tokens - 1 - second.started.cached_tokens
    assert 2 * new <= told.total <= 2 * new + 3


def test_the_same_prompt_again_leaves_one_token_to_read(letters: Path) -> None:
    session = pair(letters, letters)
    limit = Sampling(temperature=0.0, max_tokens=7)
    first = Reply(session, "hi", sampling=limit)
    again = Reply(session, "hi", sampling=limit)
    assert again.started.cached_tokens == again.started.prompt_tokens - 1
    assert again.of(Prefill) == []
    assert again.text == first.text


def test_a_stopped_reply_stays_cached_for_the_turn_after_it(letters: Path) -> None:
    session = pair(letters, letters)
    stopped = Reply(session, "hi", hook=after(3, stop))
    assert stopped.finished.reason == "stopped"
    after_it = Reply(
        session, "hi", stopped.text, "more", sampling=Sampling(temperature=0.0, max_tokens=3)
    )
    expected = stopped.started.prompt_tokens + len(stopped.tokens) - 1
    assert after_it.started.cached_tokens == expected


def test_a_stopped_reply_can_be_continued_in_the_middle(letters: Path) -> None:
    session = pair(letters, letters)
    stopped = Reply(session, "hi", hook=after(2, stop))
    rest = Reply(session, "hi", stopped.text, sampling=Sampling(temperature=0.0, max_tokens=3))
    assert rest.started.cached_tokens == rest.started.prompt_tokens - 1
    assert (stopped.text + rest.text).startswith("abcdefgh")
    assert len(rest.text) == 3


@pytest.mark.parametrize("with_draft", [True, False])
def test_a_reply_from_kept_caches_equals_one_from_empty_caches(
    random_pair: tuple[Path, Path], with_draft: bool
) -> None:
    target, draft = random_pair
    session = pair(target, draft if with_draft else None)
    limit = Sampling(temperature=0.0, max_tokens=20)
    first = Reply(session, "once", sampling=limit)
    for turns in (("once",), ("once", first.text, "more"), ("once upon",), ("x",), ("once",)):
        kept = Reply(session, *turns, sampling=limit)
        fresh = Reply(pair(target), *turns, sampling=limit)
        assert kept.tokens == fresh.tokens


def test_a_failure_in_the_middle_leaves_the_session_usable(
    random_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = pair(*random_pair)
    limit = Sampling(temperature=0.0, max_tokens=12)
    expected = Reply(session, "hi", sampling=limit).tokens
    assert session.caches.draft is not None
    model = session.caches.draft

    def fail(tokens: torch.Tensor, rows: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(torch.OutOfMemoryError):
        Reply(session, "another", sampling=limit)
    assert session.caches.committed == []
    assert Reply(session, "hi", sampling=limit).tokens == expected


def test_a_target_that_gives_no_numbers_is_a_failure_of_its_own_kind(tiny: TinyModels) -> None:
    session = pair(tiny.broken("broken"))
    for _ in range(2):
        with pytest.raises(EngineError) as failure:
            Reply(session, "hi")
        assert failure.value.kind == "non-finite"
        assert_caches_hold_the_text(session)


# --- the knob -----------------------------------------------------------------------------------


def test_the_knob_is_acknowledged_when_a_reply_starts(letters: Path) -> None:
    knob = Knob(threshold=0.25, lookahead="2")
    reply = Reply(pair(letters), "hi", knob=knob, sampling=Sampling(max_tokens=2))
    assert reply.of(KnobSet) == [KnobSet(request=1, index=0, knob=knob)]


def test_a_turned_knob_governs_from_the_index_it_is_acknowledged_with(letters: Path) -> None:
    turned = Knob(rule="target-only")

    def turn(control: ReplyControl) -> None:
        control.knob = turned

    reply = Reply(
        pair(letters, letters),
        "hi",
        sampling=Sampling(temperature=0.0, max_tokens=20),
        hook=after(2, turn),
    )
    acknowledged = reply.of(KnobSet)[-1]
    assert acknowledged == KnobSet(request=1, index=8, knob=turned)
    tokens = [token for round in reply.rounds for token in round.tokens]
    assert {token.origin for token in tokens[:8]} == {"accepted", "bonus"}
    assert {token.origin for token in tokens[8:]} == {"target"}


def test_drafting_can_come_back_after_a_long_stretch_without(letters: Path) -> None:
    def on_again(control: ReplyControl) -> None:
        control.knob = Knob(rule="exact", lookahead="3")

    session = pair(letters, letters)
    reply = Reply(
        session,
        "hi",
        knob=Knob(rule="target-only"),
        sampling=Sampling(temperature=0.0, max_tokens=150),
        hook=after(100, on_again),
    )
    assert reply.text == ("abcdefghijklmnopqrstuvwxyz" * 6)[:150]
    assert {token.origin for token in reply.rounds[100].tokens} == {"accepted", "bonus"}


def test_a_knob_that_cannot_be_is_reported_and_the_reply_goes_on(letters: Path) -> None:
    def break_it(control: ReplyControl) -> None:
        control.knob = Knob(threshold=math.nan)

    reply = Reply(
        pair(letters),
        "hi",
        sampling=Sampling(temperature=0.0, max_tokens=5),
        hook=after(2, break_it),
    )
    (problem,) = reply.of(Failed)
    assert isinstance(problem, Failed)
    assert (problem.kind, problem.request) == ("bad-request", None)
    assert "threshold" in problem.message
    assert len(reply.of(KnobSet)) == 1
    assert reply.text == "abcde"


@pytest.mark.parametrize(
    ("knob", "sampling", "named"),
    [
        (Knob(threshold=-0.1), GREEDY, "threshold"),
        (Knob(lookahead="many"), GREEDY, "many"),
        (Knob(), Sampling(temperature=-1.0), "temperature"),
        (Knob(), Sampling(max_tokens=0), "max_tokens"),
        (Knob(), Sampling(stop=("a", "")), "stop string"),
        (Knob(), Sampling(seed=-1), "seed"),
        (Knob(), Sampling(exact_prefix=-1), "exact_prefix"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    letters: Path, knob: Knob, sampling: Sampling, named: str
) -> None:
    with pytest.raises(EngineError, match=named) as refused:
        Reply(pair(letters), "hi", knob=knob, sampling=sampling)
    assert refused.value.kind == "bad-request"


def test_a_conversation_without_messages_is_refused(letters: Path) -> None:
    with pytest.raises(EngineError, match="no message"):
        Reply(pair(letters))


# --- drafting and repeating ---------------------------------------------------------------------


def test_a_draft_that_slips_is_corrected_by_the_target(tiny: TinyModels) -> None:
    target = tiny.reciting("spelling", "abcdef")
    draft = tiny.reciting("slipping", "abcdef", slips={"c": "x"})
    reply = Reply(pair(target, draft), "hi", knob=Knob(rule="exact", lookahead="5"))
    assert reply.text == "abcdef"
    first = reply.rounds[0]
    assert [token.origin for token in first.tokens] == [*["accepted"] * 3, "recovered"]
    assert (first.drafted, first.tokens[-1].rejected) == (5, tiny.ids("x")[0])
    assert first.tokens[-1].text == "d"


def test_prompt_lookup_drafts_without_a_model(letters: Path) -> None:
    session = pair(letters, "prompt-lookup")
    reply = Reply(session, "hi", sampling=Sampling(temperature=0.0, max_tokens=60))
    assert ready(session.pair).draft == "prompt-lookup"
    assert "accepted" in reply.origins
    assert reply.text == ("abcdefghijklmnopqrstuvwxyz" * 3)[:60]


def test_a_reply_repeats_with_its_seed_and_its_draft_lengths(
    random_pair: tuple[Path, Path],
) -> None:
    session = pair(*random_pair)
    knob = Knob(rule="fsd", threshold=0.2, lookahead="heuristic")
    first = Reply(session, "hi", knob=knob, sampling=Sampling(max_tokens=30))
    lengths = tuple(round.drafted for round in first.rounds)
    again = Reply(
        session,
        "hi",
        knob=knob,
        sampling=Sampling(max_tokens=30, seed=first.started.seed),
        draft_lengths=lengths,
    )
    assert again.tokens == first.tokens
    assert tuple(round.drafted for round in again.rounds) == lengths
    other = Reply(session, "hi", knob=knob, sampling=Sampling(max_tokens=30))
    assert other.started.seed != first.started.seed
    assert other.tokens != first.tokens


def test_plain_text_is_continued_without_a_template(letters: Path) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=4)
    reply = Reply(pair(letters), "abc", sampling=sampling, plain=True)
    assert reply.started.prompt_tokens == 3
    assert reply.text == "defg"
