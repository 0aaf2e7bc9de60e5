"""Stopping, quitting, answering again, and new chats."""

from __future__ import annotations

import pytest
from textual.widgets import Collapsible
from ui.driving import Chat, Running

from fsd_chat.engine.messages import Failed, Generate, SetKnob, Stop
from fsd_chat.tui import app
from fsd_chat.tui.widgets.turns import ReplyTurn


async def begun(chat: Chat, text: str = "so far") -> None:
    """A reply of which `text` has been written."""
    await chat.ask("go on")
    chat.engine.begin()
    chat.engine.write(text)
    await chat.shown(text)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_key_stops_the_reply_and_what_was_said_stays(running: Running, key: str) -> None:
    async with running() as chat:
        await begun(chat)
        await chat.pilot.press(key)
        await chat.until(lambda: chat.engine.of(Stop))
        assert chat.engine.of(Stop)[0].request == chat.engine.request
        assert chat.activity == "stopping"
        chat.engine.finish("stopped")
        await chat.answered()
        assert chat.replies == ["so far"]
        assert chat.stored_reply.text == "so far"
        assert chat.stored_reply.reason == "stopped"
        assert chat.app.is_running


async def test_ctrl_c_twice_within_three_seconds_quits(running: Running) -> None:
    async with running() as chat:
        await begun(chat)
        await chat.pilot.press("ctrl+c", "ctrl+c")
        await chat.until(lambda: not chat.app.is_running)
    assert chat.engine.closed


async def test_ctrl_c_a_second_time_but_later_does_not_quit(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "QUIT_WITHIN_S", 0.0)
    async with running() as chat:
        await begun(chat)
        await chat.pilot.press("ctrl+c", "ctrl+c")
        await chat.until(lambda: len(chat.engine.of(Stop)) == 2)
        assert chat.app.is_running


async def test_ctrl_c_with_nothing_to_stop_says_what_a_second_one_does(running: Running) -> None:
    async with running() as chat:
        await chat.pilot.press("ctrl+c")
        await chat.told("Ctrl+C again within three seconds quits")
        assert chat.app.is_running


async def test_escape_with_nothing_to_stop_does_nothing(running: Running) -> None:
    async with running() as chat:
        await chat.pilot.press("escape")
        assert chat.activity == "ready"
        assert not chat.engine.of(Stop)


async def test_a_reply_is_on_disk_from_its_first_token_on(running: Running) -> None:
    async with running() as chat:
        await begun(chat, "w")
        assert chat.stored_reply.text == "w"


async def test_answering_again_replaces_the_last_reply(running: Running) -> None:
    async with running() as chat:
        await chat.ask("question")
        chat.engine.reply("a poor answer")
        await chat.answered()
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(chat.engine.of(Generate)) == 2)
        assert chat.engine.of(Generate)[0].messages == chat.engine.of(Generate)[1].messages
        chat.engine.reply("a better answer")
        await chat.answered()
        assert chat.replies == ["a better answer"]
        assert [one.content for one in chat.stored.messages] == ["question", "a better answer"]


async def test_answering_again_waits_for_the_reply_under_way(running: Running) -> None:
    async with running() as chat:
        await begun(chat)
        await chat.pilot.press("ctrl+r")
        await chat.told("the reply is still being written")
        assert len(chat.engine.of(Generate)) == 1


async def test_answering_again_where_nothing_was_asked_is_said(running: Running) -> None:
    async with running() as chat:
        await chat.pilot.press("ctrl+r")
        await chat.told("nothing to answer yet")


async def test_a_new_chat_is_empty_and_forgets_what_was_said(running: Running) -> None:
    async with running() as chat:
        await chat.ask("one")
        chat.engine.reply("first")
        await chat.answered()
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: not chat.said)
        await chat.ask("two")
        assert [one.content for one in chat.engine.of(Generate)[-1].messages] == ["two"]
        assert len(chat.app.talk.store.chats()) == 2


async def test_a_new_chat_waits_for_the_reply_under_way(running: Running) -> None:
    async with running() as chat:
        await begun(chat)
        await chat.pilot.press("ctrl+n")
        await chat.told("a reply is being written here")
        assert chat.said == ["go on"]


async def test_a_failed_reply_is_told_and_keeps_what_came(running: Running) -> None:
    async with running() as chat:
        await begun(chat)
        chat.engine.tell(
            Failed(kind="non-finite", message="the target gave NaN", request=chat.engine.request)
        )
        await chat.told("the target gave NaN")
        await chat.answered()
        assert chat.replies == ["so far"]
        assert chat.stored_reply.text == "so far"
        await chat.ask("again")


async def test_a_reply_that_failed_before_its_first_token_leaves_no_empty_turn(
    running: Running,
) -> None:
    async with running() as chat:
        await chat.ask("a prompt that is too long")
        chat.engine.tell(
            Failed(kind="context", message="it does not fit", request=chat.engine.request)
        )
        await chat.told("it does not fit")
        await chat.answered()
        assert chat.replies == []
        assert chat.said == ["a prompt that is too long"]
        assert [one.role for one in chat.stored.messages] == ["user"]


async def test_a_pair_that_cannot_be_loaded_is_told_and_one_can_still_write(
    running: Running,
) -> None:
    async with running(loaded=False) as chat:
        chat.engine.tell(Failed(kind="not-found", message="there is no folder /m"))
        await chat.told("there is no folder /m")
        await chat.until(lambda: chat.activity == "no model")
        await chat.enter("kept")
        await chat.until(lambda: chat.said == ["kept"])


async def test_dropped_turns_are_told(running: Running) -> None:
    async with running() as chat:
        await chat.ask("one")
        chat.engine.begin(dropped_turns=4)
        await chat.told("4 oldest messages no longer fit the context")


async def test_thoughts_are_shown_apart_and_folded_once_the_answer_begins(
    running: Running,
) -> None:
    async with running() as chat:
        await chat.ask("think")
        chat.engine.begin()
        chat.engine.write("", reasoning="step by step")
        turn = chat.app.chat.query_one(ReplyTurn)
        await chat.until(lambda: turn.query(Collapsible))
        thoughts = turn.query_one(Collapsible)
        assert not thoughts.collapsed
        chat.engine.write("42")
        await chat.shown("42")
        await chat.until(lambda: thoughts.collapsed)
        chat.engine.finish()
        await chat.answered()
        assert chat.replies == ["42"]
        assert chat.stored_reply.reasoning == "step by step"


async def test_events_of_a_reply_that_is_over_change_nothing(running: Running) -> None:
    async with running() as chat:
        await begun(chat)
        chat.engine.finish("stopped")
        chat.engine.write("too late")
        await chat.answered()
        await chat.pilot.pause(0.1)
        assert chat.replies == ["so far"]
        assert not chat.engine.of(SetKnob)
