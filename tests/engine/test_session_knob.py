from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.inbox import ReplyControl
from fsd_chat.engine.messages import (
    Failed,
    Knob,
    KnobSet,
    Sampling,
)

if TYPE_CHECKING:
    from conftest import OpenPair, Reply

GREEDY = Sampling(temperature=0.0)


def test_the_knob_is_acknowledged_when_a_reply_starts(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    knob = Knob(threshold=0.25, lookahead="2")
    reply = say(pair(letters), "hi", knob=knob, sampling=Sampling(max_tokens=2))
    assert reply.of(KnobSet) == [KnobSet(request=1, index=0, knob=knob)]


def test_a_turned_knob_governs_from_the_index_it_is_acknowledged_with(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    turned = Knob(rule="target-only")

    def turn(control: ReplyControl) -> None:
        control.knob = turned

    reply = say(
        pair(letters, letters),
        "hi",
        sampling=Sampling(temperature=0.0, max_tokens=20),
        after=(2, turn),
    )
    acknowledged = reply.of(KnobSet)[-1]
    assert acknowledged == KnobSet(request=1, index=8, knob=turned)
    tokens = [token for round in reply.rounds for token in round.tokens]
    assert {token.origin for token in tokens[:8]} == {"accepted", "bonus"}
    assert {token.origin for token in tokens[8:]} == {"target"}


def test_drafting_can_come_back_after_a_long_stretch_without(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    def on_again(control: ReplyControl) -> None:
        control.knob = Knob(rule="exact", lookahead="3")

    session = pair(letters, letters)
    reply = say(
        session,
        "hi",
        knob=Knob(rule="target-only"),
        sampling=Sampling(temperature=0.0, max_tokens=150),
        after=(100, on_again),
    )
    assert reply.text == ("abcdefghijklmnopqrstuvwxyz" * 6)[:150]
    assert {token.origin for token in reply.rounds[100].tokens} == {"accepted", "bonus"}


def test_a_knob_that_cannot_be_is_reported_and_the_reply_goes_on(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    def break_it(control: ReplyControl) -> None:
        control.knob = Knob(threshold=math.nan)

    reply = say(
        pair(letters),
        "hi",
        sampling=Sampling(temperature=0.0, max_tokens=5),
        after=(2, break_it),
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
    pair: OpenPair, say: type[Reply], letters: Path, knob: Knob, sampling: Sampling, named: str
) -> None:
    with pytest.raises(EngineError, match=named) as refused:
        say(pair(letters), "hi", knob=knob, sampling=sampling)
    assert refused.value.kind == "bad-request"


def test_a_conversation_without_messages_is_refused(
    pair: OpenPair, say: type[Reply], letters: Path
) -> None:
    with pytest.raises(EngineError, match="no message"):
        say(pair(letters))
