"""The list of chats, opening one and going on, and saving transcripts."""

from __future__ import annotations

import json
from pathlib import Path

from textual.widgets import Input, OptionList, Static
from ui.driving import Chat, Running

from fsd_chat.engine.messages import Generate
from fsd_chat.tui.screens.chats import ChatsScreen
from fsd_chat.tui.screens.confirm import ConfirmScreen


async def talked(chat: Chat, question: str, answer: str) -> None:
    await chat.ask(question)
    chat.engine.reply(answer)
    await chat.answered()


async def listed(chat: Chat) -> OptionList:
    """The open list of chats."""
    await chat.pilot.press("ctrl+o")
    await chat.until(lambda: isinstance(chat.app.screen, ChatsScreen) and chat.app.screen.focused)
    return chat.app.screen.query_one("#found", OptionList)


def titles(found: OptionList) -> str:
    return "\n".join(str(option.prompt) for option in found.options)


async def test_an_earlier_chat_is_found_opened_and_gone_on_with(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "about owls", "they [/INST] hoot")
        await chat.pilot.press("ctrl+n")
        await talked(chat, "about cats", "they purr")
        found = await listed(chat)
        await chat.until(lambda: found.option_count == 2)
        assert "about cats" in titles(found).splitlines()[0]
        await chat.pilot.press(*"hoot")
        await chat.until(lambda: found.option_count == 1)
        assert "about owls" in titles(found)
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.said == ["about owls"])
        await chat.shown("they [/INST] hoot")
        await chat.ask("more")
        contents = [one.content for one in chat.engine.of(Generate)[-1].messages]
        assert contents == ["about owls", "they [/INST] hoot", "more"]


async def test_a_search_that_finds_nothing_says_so_and_enter_stays(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "about owls", "they hoot")
        found = await listed(chat)
        chat.app.screen.query_one(Input).value = "[zebra"
        await chat.until(lambda: not found.display)
        assert "'[zebra'" in str(chat.app.screen.query_one("#empty", Static).content)
        await chat.pilot.press("enter")
        assert isinstance(chat.app.screen, ChatsScreen)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.app.chat)
        assert chat.said == ["about owls"]


async def test_the_list_is_walked_with_the_arrow_keys(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "older", "x")
        await chat.pilot.press("ctrl+n")
        await talked(chat, "newer", "y")
        found = await listed(chat)
        await chat.until(lambda: found.option_count == 2)
        await chat.pilot.press("down", "enter")
        await chat.until(lambda: chat.said == ["older"])


async def test_titles_that_look_like_markup_are_listed_as_they_are(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "[bold] or [/INST]?", "neither")
        found = await listed(chat)
        await chat.until(lambda: found.option_count == 1)
        assert "[bold] or [/INST]?" in titles(found)


async def test_the_list_waits_for_the_reply_under_way(running: Running) -> None:
    async with running() as chat:
        await chat.ask("one")
        await chat.pilot.press("ctrl+o")
        await chat.told("a reply is being written here")
        assert chat.app.screen is chat.app.chat


async def test_saving_writes_markdown_where_one_stands(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "about owls", "they hoot")
        await chat.pilot.press("ctrl+s")
        await chat.told("saved ")
        (saved,) = Path.cwd().glob("*-about-owls.md")
        assert "they hoot" in saved.read_text(encoding="utf-8")


async def test_saving_as_json_keeps_tokens_and_their_origins(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "about owls", "they hoot")
        await chat.enter("/save owls.json")
        await chat.told("saved ")
        saved = json.loads(Path("owls.json").read_text(encoding="utf-8"))
        assert "accepted" in json.dumps(saved)
        assert chat.prompt.text == ""


async def test_saving_asks_before_it_replaces_a_file(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "about owls", "they hoot")
        Path("owls.md").write_text("mine", encoding="utf-8")
        for key, kept in (("n", True), ("escape", True), ("y", False)):
            await chat.enter("/save owls.md")
            await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
            await chat.pilot.press(key)
            await chat.until(lambda: chat.app.screen is chat.app.chat)
            assert (Path("owls.md").read_text(encoding="utf-8") == "mine") is kept
        await chat.told("saved ")


async def test_saving_into_a_folder_that_is_not_there_is_told(running: Running) -> None:
    async with running() as chat:
        await talked(chat, "about owls", "they hoot")
        await chat.enter("/save nowhere/owls.md")
        await chat.told("cannot be written")
        assert chat.app.is_running


async def test_saving_before_anything_was_said_is_told(running: Running) -> None:
    async with running() as chat:
        await chat.pilot.press("ctrl+s")
        await chat.told("there is nothing to save yet")
        assert not list(Path.cwd().iterdir())
