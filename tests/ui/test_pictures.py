"""Pictures of every screen, with speeds and clocks that stand still.

`pytest tests/ui/test_pictures.py --snapshot-update` draws them anew.
Look at each before committing it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList
from ui.driving import NARROW, WIDE, Chat, MakeApp
from ui.scripted import Engines

from fsd_chat.chats import conversation as kept
from fsd_chat.tui.app import ChatApp

SCREENS = [("dusk", NARROW), ("paper", WIDE)]
ANSWER = (
    "Slicing does it, with a **negative step**:\n\n",
    "```python\ndef reverse(text: str) -> str:\n    return text[::-1]\n```\n\n",
    "| part | meaning |\n|---|---|\n| `-1` | backwards |\n\n",
    "1. It takes a string,\n2. and gives it back *reversed*. `[/INST]` 漢字 שלום",
)


@pytest.fixture(params=SCREENS, ids=["dark-80x24", "light-120x40"])
def picture(
    request: pytest.FixtureRequest, make_app: MakeApp, engines: Engines, snap_compare: Any
) -> Callable[[Callable[[Chat], Awaitable[None]]], bool]:
    theme, size = request.param

    def compare(act: Callable[[Chat], Awaitable[None]]) -> bool:
        app: ChatApp = make_app(theme=theme)

        async def run_before(pilot: Pilot[None]) -> None:
            chat = Chat(app, pilot, engines)
            await chat.until(lambda: engines.made and engines.now.sent)
            await chat.ready()
            chat.prompt.cursor_blink = False
            await act(chat)
            await pilot.pause(0.4)

        return bool(snap_compare(app, terminal_size=size, run_before=run_before))

    return compare


async def _answered(chat: Chat) -> None:
    await chat.ask("How do I reverse a string in Python?")
    chat.engine.begin()
    for piece in ANSWER:
        chat.engine.write(piece, " ")
    chat.engine.finish()
    await chat.answered()


def test_the_empty_chat(picture: Any) -> None:
    async def nothing(chat: Chat) -> None: ...

    assert picture(nothing)


def test_a_reply_that_is_being_written(picture: Any) -> None:
    async def writing(chat: Chat) -> None:
        await chat.ask("How do I reverse a string in Python?")
        chat.engine.begin()
        chat.engine.write(*ANSWER[:2])
        await chat.until(lambda: chat.app.talk.statistics.output == 2)

    assert picture(writing)


def test_a_reply_that_is_done(picture: Any) -> None:
    assert picture(_answered)


def test_the_help(picture: Any) -> None:
    async def help(chat: Chat) -> None:
        await chat.pilot.press("f1")

    assert picture(help)


def test_the_list_of_chats(picture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kept.ChatSummary, "when", property(lambda chat: kept.datetime(2026, 12, 1, 12, 30))
    )

    async def chats(chat: Chat) -> None:
        await _answered(chat)
        await chat.pilot.press("ctrl+o")
        await chat.until(lambda: isinstance(chat.app.focused, Input))
        chat.app.screen.query_one(Input).cursor_blink = False
        await chat.until(lambda: chat.app.screen.query_one("#found", OptionList).option_count)

    assert picture(chats)
