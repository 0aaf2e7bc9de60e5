"""Help, the palette, and keys that the configuration changes."""

from __future__ import annotations

import pytest
from textual.command import CommandPalette
from textual.widgets import Static
from ui.driving import NARROW, WIDE, Chat, Running

from fsd_chat.engine.messages import Generate, Stop
from fsd_chat.tui.commands import COMMANDS
from fsd_chat.tui.keys import ALL_KEYS, keymap, shown
from fsd_chat.tui.screens.help import HelpScreen


async def help_text(chat: Chat, key: str = "f1") -> str:
    await chat.pilot.press(key)
    await chat.until(lambda: isinstance(chat.app.screen, HelpScreen) and chat.app.screen.focused)
    return "\n".join(str(one.content) for one in chat.app.screen.query(Static))


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_help_lists_every_key_with_its_id_and_every_command(
    running: Running, size: tuple[int, int]
) -> None:
    async with running(size=size) as chat:
        text = await help_text(chat)
        for key in ALL_KEYS:
            assert key.id in text
            assert shown(key.keys) in text
            assert key.description in text
        for command in COMMANDS:
            assert command.usage in text
            assert command.description in text


@pytest.mark.parametrize("key", ["escape", "q", "f1", "ctrl+c"])
async def test_help_goes_away_again(running: Running, key: str) -> None:
    async with running() as chat:
        await help_text(chat)
        await chat.pilot.press(key)
        await chat.until(lambda: chat.app.screen is chat.app.chat)
        assert chat.app.is_running


async def test_ids_in_the_help_can_be_read_at_80_columns(running: Running) -> None:
    async with running() as chat:
        await help_text(chat)
        shown = [one.content_size.width for one in chat.app.screen.query(".id").results(Static)]
        asked = [len(key.id) for key in ALL_KEYS]
        assert all(width >= least for width, least in zip(shown, asked, strict=False))


async def test_a_rebound_key_acts_and_the_old_one_no_longer_does(running: Running) -> None:
    keys = {"threshold.zero": "f12", "prompt.send": "ctrl+g", "reply.stop": "ctrl+x"}
    async with running(keys=keys) as chat:
        await chat.pilot.press("f4")
        assert chat.app.talk.knob.threshold > 0
        await chat.pilot.press("f12")
        await chat.until(lambda: chat.app.talk.knob.threshold == 0)
        chat.type("hello")
        await chat.pilot.press("ctrl+g")
        await chat.until(lambda: chat.engine.of(Generate))
        await chat.pilot.press("ctrl+x")
        await chat.until(lambda: chat.engine.of(Stop))
        assert "F12" in await help_text(chat)
        assert not chat.notices


async def test_a_key_bound_twice_and_an_unknown_id_are_told_at_the_start(
    running: Running,
) -> None:
    async with running(keys={"threshold.zero": "ctrl+n", "no.such": "f12"}) as chat:
        await chat.told("ctrl+n is bound to both threshold.zero and chat.new")
        await chat.told("no.such: no action is called that")


def test_the_keys_as_they_come_do_not_clash() -> None:
    usable, problems = keymap({})
    assert not problems
    assert usable == {}
    every = [one for key in ALL_KEYS for one in key.keys.split(",")]
    assert len(set(every)) == len(every)


def test_two_changed_keys_may_swap_places() -> None:
    _, problems = keymap({"chat.new": "ctrl+r,f3", "reply.again": "ctrl+n,f2"})
    assert not problems


def test_a_key_of_the_prompt_counts_in_a_clash() -> None:
    _, problems = keymap({"chat.new": "enter"})
    assert problems == ["[keys] enter is bound to both chat.new and prompt.send"]


def test_everything_can_be_reached_in_a_second_way() -> None:
    for key in ALL_KEYS:
        ways = [*key.keys.split(","), *([key.slash] if key.slash else [])]
        assert len(ways) > 1 or key.id in UNASSISTED


UNASSISTED = (
    "app.interrupt",
    "prompt.send",
    # The mouse scrolls as well, and a command can be typed to its end.
    "prompt.page-up",
    "prompt.page-down",
    "prompt.complete",
)
"""The mouse wheel does the same."""


async def test_the_palette_offers_every_key_s_action(running: Running) -> None:
    async with running() as chat:
        titles = [one.title for one in chat.app.get_system_commands(chat.app.chat)]
        for key in ALL_KEYS:
            if key.action and key.id != "app.palette":
                assert any(title.startswith(key.description) for title in titles)
        await chat.pilot.press("ctrl+p")
        await chat.until(lambda: CommandPalette.is_open(chat.app))
        await chat.pilot.press(*"zero")
        await chat.pilot.pause(0.5)
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.app.talk.knob.threshold == 0)


async def test_page_keys_move_the_conversation_while_the_prompt_has_the_focus(
    running: Running,
) -> None:
    async with running() as chat:
        await chat.ask("go")
        chat.engine.reply("\n\n".join(f"paragraph {i}" for i in range(60)))
        await chat.answered()
        view = chat.app.chat.query_one("#conversation")
        await chat.until(lambda: view.max_scroll_y > 0 and view.scroll_y == view.max_scroll_y)
        await chat.pilot.press("pageup")
        await chat.until(lambda: view.scroll_y < view.max_scroll_y - 5)
        await chat.pilot.press("pagedown")
        await chat.until(lambda: view.scroll_y == view.max_scroll_y)
        assert chat.prompt.has_focus
