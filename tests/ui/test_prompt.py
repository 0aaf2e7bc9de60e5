"""Writing and sending, whatever the engine is doing."""

from __future__ import annotations

import pytest
from textual import events
from ui.driving import Running

from fsd_chat.engine.messages import Generate, Loading


async def test_enter_sends_what_was_typed(running: Running) -> None:
    async with running() as chat:
        await chat.pilot.press(*"hello")
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.engine.of(Generate))
        assert chat.engine.of(Generate)[0].messages[-1].content == "hello"
        assert chat.prompt.text == ""
        assert chat.said == ["hello"]


@pytest.mark.parametrize("key", ["ctrl+j", "alt+enter", "shift+enter"])
async def test_other_enters_begin_a_new_line(running: Running, key: str) -> None:
    async with running() as chat:
        await chat.pilot.press("a", key, "b", "enter")
        await chat.until(lambda: chat.engine.of(Generate))
        assert chat.engine.of(Generate)[0].messages[-1].content == "a\nb"


async def test_the_prompt_grows_with_its_lines_and_leaves_room_for_the_chat(
    running: Running,
) -> None:
    async with running() as chat:
        before = chat.prompt.size.height
        chat.type("one\ntwo\nthree")
        await chat.until(lambda: chat.prompt.size.height == before + 2)
        chat.type("\n" * 40)
        await chat.until(lambda: chat.prompt.outer_size.height == 10)


async def test_fast_typing_and_enter_lose_no_letter(running: Running) -> None:
    async with running() as chat:
        text = "the quick brown fox"
        for letter in text:
            chat.app.post_message(events.Key("space" if letter == " " else letter, letter))
        chat.app.post_message(events.Key("enter", "\r"))
        await chat.until(lambda: chat.engine.of(Generate))
        assert chat.engine.of(Generate)[0].messages[-1].content == text
        assert chat.prompt.text == ""


async def test_enter_on_blanks_sends_nothing_and_keeps_them(running: Running) -> None:
    async with running() as chat:
        await chat.enter("  \n ")
        await chat.pilot.pause()
        assert not chat.engine.of(Generate)
        assert chat.prompt.text == "  \n "


async def test_what_is_sent_while_loading_waits_and_is_asked_once_ready(running: Running) -> None:
    async with running(loaded=False) as chat:
        chat.engine.tell(Loading(stage="loading the target", fraction=0.4))
        await chat.until(lambda: chat.activity == "loading 40%")
        await chat.enter("one")
        await chat.enter("two")
        await chat.until(lambda: chat.said == ["one", "two"])
        assert not chat.engine.of(Generate)
        await chat.ready()
        await chat.until(lambda: len(chat.engine.of(Generate)) == 1)
        assert chat.engine.of(Generate)[0].messages[-1].content == "one"
        chat.engine.reply("first")
        await chat.until(lambda: len(chat.engine.of(Generate)) == 2)
        contents = [message.content for message in chat.engine.of(Generate)[1].messages]
        assert contents == ["one", "first", "two"]
        assert chat.said == ["one", "two"]


async def test_what_is_sent_during_a_reply_is_asked_after_it(running: Running) -> None:
    async with running() as chat:
        await chat.ask("one")
        chat.engine.begin()
        chat.engine.write("fir")
        await chat.shown("fir")
        await chat.enter("two")
        await chat.until(lambda: chat.said == ["one", "two"])
        assert len(chat.engine.of(Generate)) == 1
        chat.engine.write("st")
        chat.engine.finish()
        await chat.until(lambda: len(chat.engine.of(Generate)) == 2)
        contents = [message.content for message in chat.engine.of(Generate)[1].messages]
        assert contents == ["one", "first", "two"]


async def test_up_and_down_bring_back_what_was_sent(running: Running) -> None:
    async with running() as chat:
        await chat.ask("one")
        chat.engine.reply("first")
        await chat.answered()
        await chat.pilot.press("up")
        assert chat.prompt.text == "one"
        await chat.pilot.press("down")
        assert chat.prompt.text == ""


async def test_empty_lines_around_a_message_do_not_reach_the_model(running: Running) -> None:
    async with running() as chat:
        await chat.ask("\n\n  indented\n\n")
        assert chat.engine.of(Generate)[0].messages[-1].content == "  indented"
