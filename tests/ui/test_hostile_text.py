"""Replies that would break a screen or a terminal: shown, kept as they came, and harmless."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from textual import events
from textual.widgets import Input
from ui.driving import NARROW, Chat, Running

from fsd_chat.chats.display import plain
from fsd_chat.engine.messages import Generate

REPLIES = {
    "closing-tag": "before [/INST] after",
    "open-tag": "before [bold and [/] and [@click=app.quit]here[/] after",
    "open-fence": "text\n\n```python\nprint('never closed')",
    "only-a-fence": "```\nnothing but code\n```",
    "fence-with-a-tag": "```python\nx = a[/INST]\n```",
    "two-fences": "~~~\na\n~~~\n\n````md\n```\nb\n```\n````",
    "table": "| a | b |\n|---|---|\n| 1 | [red]2 |\n| 3 |",
    "half-a-table": "| a | b |\n|---",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ ☺️ 🇩🇪",
    "cjk": "日本語の文章です。中文也可以。한국어도.",
    "right-to-left": "العربية مع English ועברית",
    "combining": "e\u0301 n\u0303 Z̷̡͎͔̈́̌a̵̢͍͑l̷̗̚g̶̡͙͛o̸͇̍",
    "clear-screen": "before \x1b[2J\x1b[H after",
    "clipboard": "before \x1b]52;c;aGVsbG8=\x07 after",
    "title": "\x1b]0;owned\x07",
    "c1": "before \x9b2J after",
    "delete": "\x7f\x00\x08",
    "override": "user\u202etxt.exe\u202c",
    "code-with-escape": "```\n\x1b[31mred\x1b[0m\n```",
    "no-space": "x" * 5000,
    "no-space-in-code": "```\n" + "y" * 5000 + "\n```",
    "html": "<script>alert(1)</script>\n\n<b>bold</b> &#27;[2J &#x202e;",
    "link": "[a](javascript:alert(1)) ![b](http://x/y.png) [c]: http://z",
    "carriage-returns": "one\r\ntwo\rthree",
    "rule-and-heading": "# [/x]\n\n---\n\n> [i]quoted\n\n1. [b]one\n   - two",
    "bare": "[]",
}


def terminal_bytes(chat: Chat) -> str:
    """What a terminal is sent for the whole screen, as Textual itself renders it."""
    width, height = chat.app.size
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(chat.app.screen._compositor.render_update(full=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def texts_on_screen(chat: Chat) -> str:
    """The letters in the screen's cells."""
    strips = chat.app.screen._compositor.render_strips()
    return "\n".join(strip.text for strip in strips)


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
async def test_a_reply_is_shown_and_kept_whatever_it_contains(running: Running, reply: str) -> None:
    piece = max(7, len(reply) // 10)
    async with running() as chat:
        await chat.ask("go")
        chat.engine.begin()
        for at in range(0, len(reply), piece):
            chat.engine.write(reply[at : at + piece])
            await chat.pilot.pause(0.01)
        await chat.until(lambda: len(chat.conversation.messages[-1].content) == len(reply))
        await chat.pilot.pause(0.1)
        during = texts_on_screen(chat)
        chat.engine.finish()
        await chat.answered()
        assert chat.replies[-1] == plain(reply)
        assert chat.stored.messages[-1].content == reply
        for text in (during, texts_on_screen(chat), chat.app.export_screenshot()):
            assert not set(text) & CONTROLS
        for harm in ("\x1b[2J", "\x1b]52", "\x1b]0;", "\x9b", "\x07"):
            assert harm not in terminal_bytes(chat)
        await chat.ask("go on")
        assert chat.engine.of(Generate)[-1].messages[1].content == reply


CONTROLS = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E)}


async def test_streamed_text_and_final_text_are_the_same_letter_by_letter(
    running: Running,
) -> None:
    reply = "```py\na = 1\n```\n\n* one\n* two\n\n| a |\n|--|\n| 1 |\n\nend `x"
    async with running() as chat:
        await chat.ask("go")
        chat.engine.begin()
        for at, letter in enumerate(reply, start=1):
            chat.engine.write(letter)
            await chat.until(lambda at=at: chat.replies[-1] == reply[:at])
        chat.engine.finish()
        await chat.answered()
        assert chat.replies == [reply]


async def test_a_reply_that_is_one_fence_is_not_blank(running: Running) -> None:
    async with running() as chat:
        await chat.ask("go")
        chat.engine.reply("```python\n", "print('visible')\n", "```")
        await chat.answered()
        await chat.until(lambda: "visible" in texts_on_screen(chat))


async def test_a_message_is_no_markup_either(running: Running) -> None:
    async with running() as chat:
        text = "[bold]you[/INST] say [@click=app.quit]this[/]"
        await chat.ask(text)
        assert text in texts_on_screen(chat)
        assert chat.engine.of(Generate)[0].messages[-1].content == text


async def test_a_paste_with_escape_sequences_does_not_act_and_arrives_whole(
    running: Running,
) -> None:
    text = "before \x1b[2J after"
    async with running() as chat:
        chat.app.post_message(events.Paste(text))
        await chat.until(lambda: chat.prompt.text == text)
        assert "before ␛[2J after" in texts_on_screen(chat)
        assert "\x1b[2J" not in terminal_bytes(chat)
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.engine.of(Generate))
        assert chat.engine.of(Generate)[0].messages[-1].content == text
        assert "\x1b[2J" not in terminal_bytes(chat)


@pytest.mark.parametrize("key", ["ctrl+o", "ctrl+p"])
async def test_a_paste_into_a_search_does_not_act_either(running: Running, key: str) -> None:
    async with running() as chat:
        await chat.pilot.press(key)
        await chat.until(lambda: isinstance(chat.app.focused, Input))
        chat.app.post_message(events.Paste("x\x1b[2J"))
        await chat.until(lambda: "x␛[2J" in texts_on_screen(chat))
        assert "\x1b[2J" not in terminal_bytes(chat)


async def test_everything_is_saved_unharmed(running: Running) -> None:
    async with running() as chat:
        for reply in REPLIES.values():
            await chat.ask("go")
            chat.engine.reply(reply)
            await chat.answered()
        await chat.enter("/save all.json")
        await chat.told("saved")
        saved = json.loads(Path("all.json").read_text(encoding="utf-8"))
        contents = [one["content"] for one in saved["messages"] if one["role"] == "assistant"]
        assert contents == list(REPLIES.values())
        await chat.enter("/save all.md")
        await chat.until(lambda: Path("all.md").exists())
        markdown = Path("all.md").read_bytes().decode("utf-8")
        assert "before [/INST] after" in markdown
        assert "x" * 5000 in markdown


async def test_five_thousand_letters_without_a_space_wrap_within_the_screen(
    running: Running,
) -> None:
    async with running(size=NARROW) as chat:
        await chat.ask("go")
        chat.engine.reply("x" * 5000)
        await chat.answered()
        await chat.until(lambda: chat.markdown().size.height >= 5000 // NARROW[0])
        assert chat.markdown().size.width <= NARROW[0]
