from __future__ import annotations

from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.inbox import Inbox, ReplyControl
from fsd_chat.engine.messages import (
    Command,
    Generate,
    Knob,
    LoadPair,
    Message,
    ModelSource,
    SetKnob,
    Shutdown,
    Stop,
    command_encoder,
)


def put(inbox: Inbox, command: Command) -> bool:
    return inbox.put(command_encoder.encode(command))


def ask(request: int) -> Generate:
    return Generate(request=request, messages=(Message(role="user", content="hi"),))


def taken(inbox: Inbox) -> ReplyControl:
    work = inbox.next()
    assert isinstance(work, ReplyControl)
    return work


def test_work_comes_out_in_order() -> None:
    inbox = Inbox()
    load = LoadPair(name="p", target=ModelSource(location="t"))
    assert put(inbox, load)
    assert put(inbox, ask(1))
    assert inbox.next() == load
    assert taken(inbox).command == ask(1)


def test_stopping_and_turning_reach_a_reply_that_is_being_written() -> None:
    inbox = Inbox()
    put(inbox, ask(1))
    reply = taken(inbox)
    put(inbox, SetKnob(request=1, knob=Knob(threshold=0.5)))
    put(inbox, Stop(request=1))
    assert reply.stopped
    assert reply.knob.threshold == 0.5


def test_a_reply_can_be_stopped_before_its_turn() -> None:
    inbox = Inbox()
    put(inbox, ask(1))
    put(inbox, ask(2))
    put(inbox, Stop(request=2))
    assert not taken(inbox).stopped
    assert taken(inbox).stopped


def test_words_about_a_reply_that_is_over_or_unknown_are_ignored() -> None:
    inbox = Inbox()
    put(inbox, ask(1))
    inbox.done(taken(inbox))
    put(inbox, Stop(request=1))
    put(inbox, SetKnob(request=9, knob=Knob()))
    put(inbox, ask(1))
    assert not taken(inbox).stopped


def test_a_number_in_use_is_refused() -> None:
    inbox = Inbox()
    put(inbox, ask(1))
    put(inbox, ask(1))
    taken(inbox)
    problem = inbox.next()
    assert isinstance(problem, EngineError)
    assert "request 1" in str(problem)


def test_what_is_no_command_is_reported_with_its_place() -> None:
    inbox = Inbox()
    command = command_encoder.encode(ask(1)).replace(b"user", b"King")
    assert inbox.put(command)
    assert inbox.put(b"\xc1garbage")
    for mention in ("role", "not understood"):
        problem = inbox.next()
        assert isinstance(problem, EngineError)
        assert problem.kind == "bad-request"
        assert mention in str(problem)


def test_shutting_down_is_passed_on_to_the_caller() -> None:
    assert not put(Inbox(), Shutdown())
