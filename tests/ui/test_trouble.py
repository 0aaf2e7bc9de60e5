"""Engines that die, histories that cannot be written, broken themes: told, and nothing lost."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from ui.driving import Chat, Running

from fsd_chat.chats.store import ChatStore
from fsd_chat.engine.messages import Generate, LoadPair
from fsd_chat.places import theme_folders
from fsd_chat.tui.link import MOST_FAILED_STARTS
from fsd_chat.tui.themes import load_themes


async def half_a_reply(chat: Chat) -> None:
    await chat.ask("go on")
    chat.engine.begin()
    chat.engine.write("so far")
    await chat.shown("so far")


async def test_an_engine_that_dies_in_a_reply_is_replaced_and_the_reply_kept(
    running: Running,
) -> None:
    async with running() as chat:
        await half_a_reply(chat)
        dead = chat.engine
        dead.die()
        await chat.told(
            f"the engine stopped unexpectedly; starting another one. Its log: {dead.log_path}"
        )
        await chat.until(lambda: chat.engine is not dead and chat.engine.sent)
        assert isinstance(chat.engine.sent[0], LoadPair)
        await chat.answered()
        assert chat.replies == ["so far"]
        assert chat.stored_reply.text == "so far"
        assert chat.stored_reply.reason is None
        await chat.enter("and then?")
        await chat.until(lambda: chat.said[-1] == "and then?")
        await chat.ready()
        await chat.until(lambda: chat.engine.of(Generate))
        contents = [one.content for one in chat.engine.of(Generate)[0].messages]
        assert contents == ["go on", "so far", "and then?"]
        chat.engine.reply("the end")
        await chat.shown("the end")


async def test_an_engine_that_dies_between_replies_is_replaced_too(running: Running) -> None:
    async with running() as chat:
        chat.engine.die()
        await chat.told("starting another one")
        await chat.until(lambda: len(chat.engines.made) == 2 and chat.engine.sent)
        await chat.ready()
        await chat.ask("hello")


async def test_after_three_starts_that_failed_the_user_decides(running: Running) -> None:
    async with running(loaded=False) as chat:
        chat.engines.stillborn = True
        chat.engine.die()
        await chat.told("/restart tries again")
        await chat.until(lambda: chat.activity == "engine stopped")
        await chat.pilot.pause(0.2)
        assert len(chat.engines.made) == MOST_FAILED_STARTS
        await chat.enter("kept")
        await chat.until(lambda: chat.said == ["kept"])
        chat.engines.stillborn = False
        await chat.enter("/restart")
        await chat.until(lambda: len(chat.engines.made) == MOST_FAILED_STARTS + 1)
        await chat.ready()
        await chat.until(lambda: chat.engine.of(Generate))
        assert chat.engine.of(Generate)[0].messages[-1].content == "kept"


async def test_a_history_that_is_deleted_is_written_again_and_that_is_told(
    running: Running, tmp_path: Path
) -> None:
    async with running() as chat:
        await half_a_reply(chat)
        shutil.rmtree(tmp_path / "data")
        chat.engine.finish(text=", so good")
        await chat.told("was deleted while in use; it has been written again")
        assert chat.replies == ["so far, so good"]
        assert (tmp_path / "data" / "chats.db").exists()
    reopened = ChatStore(tmp_path / "data" / "chats.db")
    (summary,) = reopened.chats()
    contents = [one.content for one in reopened.open(summary.id).messages]
    reopened.close()
    assert contents == ["go on", "so far, so good"]


def fill(store: ChatStore) -> sqlite3.Connection:
    """Leave the history no page to grow by, as a full disk does."""
    connection = store._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    return connection


async def test_a_full_disk_is_told_once_and_nothing_is_lost(
    running: Running, store: ChatStore
) -> None:
    long = "many words " * 2000
    async with running() as chat:
        await half_a_reply(chat)
        connection = fill(store)
        chat.engine.write(long)
        chat.engine.write("more")
        chat.engine.finish()
        await chat.told("cannot be written")
        await chat.answered()
        assert sum("cannot be written" in one for one in chat.notices) == 1
        assert chat.replies == ["so far" + long + "more"]
        await chat.ask("still there?")
        contents = [one.content for one in chat.engine.of(Generate)[-1].messages]
        assert contents == ["go on", "so far" + long + "more", "still there?"]
        await chat.enter("/save all.md")
        await chat.told("saved ")
        assert long.strip() in Path("all.md").read_text(encoding="utf-8")
        chat.engine.begin()
        chat.engine.write("yes")
        chat.engine.finish()
        await chat.answered()
        connection.execute("PRAGMA max_page_count = 1000000")
        await chat.ask("room again")
        chat.engine.reply("good")
        await chat.answered()
        contents = [one.content for one in chat.stored.messages]
        assert contents == [
            "go on",
            "so far" + long + "more",
            "still there?",
            "yes",
            "room again",
            "good",
        ]


async def test_a_disk_that_is_full_from_the_start_does_not_keep_one_from_chatting(
    running: Running, store: ChatStore
) -> None:
    fill(store)
    big = "long " * 5000
    async with running() as chat:
        await chat.ask(big)
        await chat.told("cannot be written")
        chat.engine.reply("answer")
        await chat.answered()
        assert chat.replies == ["answer"]
        assert chat.said == [big]
        await chat.pilot.press("ctrl+r")
        await chat.until(lambda: len(chat.engine.of(Generate)) == 2)


async def test_a_history_that_cannot_be_read_is_told_in_the_list(
    running: Running, store: ChatStore
) -> None:
    async with running() as chat:
        store._database._connection.execute("DROP TABLE replies")
        store._database._connection.execute("DROP TABLE messages")
        await chat.pilot.press("ctrl+o")
        await chat.until(
            lambda: "cannot be read" in str(chat.app.screen.query("#empty").first().content)
        )


async def test_a_broken_theme_is_told_with_its_line_and_the_others_are_there(
    running: Running, tmp_path: Path
) -> None:
    folder = tmp_path / "config" / "themes"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("dark = true\nbackground = 3 3\n", encoding="utf-8")
    async with running(themes=load_themes(theme_folders())) as chat:
        await chat.told("mine.toml, line 2")
        assert chat.app.theme == "dusk"


@pytest.mark.parametrize("theme", ["nosuch", "[/INST]", ""])
async def test_an_unknown_theme_is_told_and_replaced(running: Running, theme: str) -> None:
    async with running(theme=theme) as chat:
        await chat.told(f"there is no theme called {theme!r}")
        assert chat.app.theme == "dusk"
