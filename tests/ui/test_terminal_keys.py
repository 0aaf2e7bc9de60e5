"""What terminals send for keys, read as those keys."""

from __future__ import annotations

import time

import pytest
from textual import constants
from textual._xterm_parser import XTermParser
from ui.driving import Running

from fsd_chat.engine.messages import Generate
from fsd_chat.tui.keys import ALL_KEYS
from fsd_chat.tui.terminal_keys import tell_alt_keys_apart

SENT = {
    "\x1b": "escape",
    "\x1b[1;5A": "ctrl+up",
    "\x1b[1;5B": "ctrl+down",
    "\x1b[1;3A": "alt+up",
    "\x1b[1;3B": "alt+down",
    "\x1b0": "alt+0",
    "\x1b\r": "alt+enter",
    "\x1b[13;3u": "alt+enter",
    "\x1b[13;2u": "shift+enter",
    "\n": "ctrl+j",
    "\r": "enter",
    "\t": "tab",
    "\x00": "ctrl+@",
    "\x03": "ctrl+c",
    "\x12": "ctrl+r",
    "\x0e": "ctrl+n",
    "\x0f": "ctrl+o",
    "\x10": "ctrl+p",
    "\x11": "ctrl+q",
    "\x13": "ctrl+s",
    "\x1bo": "alt+o",
    "\x1bs": "alt+s",
    "\x1bh": "alt+h",
    "\x1bp": "alt+p",
    "\x1bq": "alt+q",
    "\x1bOP": "f1",
    "\x1bOQ": "f2",
    "\x1bOR": "f3",
    "\x1bOS": "f4",
    "\x1b[17~": "f6",
    "\x1b[18~": "f7",
    "\x1b[19~": "f8",
    "\x1b[20~": "f9",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
}
"""By xterm, tmux and most others."""


def keys_read(sequence: str) -> list[str]:
    """The keys that Textual makes of `sequence` and the pause after it."""
    parser = XTermParser()
    events = list(parser.feed(sequence))
    time.sleep(constants.ESCAPE_DELAY + 0.01)
    return [getattr(event, "key", str(event)) for event in (*events, *parser.tick())]


@pytest.mark.parametrize(("sequence", "key"), SENT.items())
def test_a_sequence_is_read_as_its_key(sequence: str, key: str) -> None:
    tell_alt_keys_apart()
    assert keys_read(sequence) == [key]


def test_terminals_send_every_key_that_is_bound() -> None:
    bound = {one for key in ALL_KEYS for one in key.keys.split(",")}
    assert bound <= {*SENT.values()}


async def test_enter_with_shift_the_older_way_begins_a_new_line(running: Running) -> None:
    async with running() as chat:
        (event,) = XTermParser().feed("\x1b[27;2;13~")
        chat.type("a")
        chat.app.post_message(event)
        await chat.until(lambda: chat.prompt.text == "a\n")
        assert not chat.engine.of(Generate)
