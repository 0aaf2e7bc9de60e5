"""The turns, below each other; follows the end until the reader scrolls away."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

WELCOME = """\
This is a chat with a language model on your own machine. A small draft \
model proposes words and the target model judges them: speculative \
decoding. The threshold T says how far the two may disagree and the draft \
still have its way: 0 is exactly the target, and more is faster and freer.

{pair}

Ctrl+↑ Ctrl+↓   turn T, also while a reply is written (or F8, F7)
F4              T to zero
F1              every key and command"""


class Conversation(VerticalScroll):
    def __init__(self) -> None:
        super().__init__(id="conversation", can_focus=False)

    def compose(self) -> ComposeResult:
        yield Static("", id="welcome", markup=False)

    def on_mount(self) -> None:
        self.anchor()

    def welcome(self, pair: str) -> None:
        """What the empty conversation says."""
        self.query_one("#welcome", Static).update(WELCOME.format(pair=pair))

    async def add(self, turn: Widget) -> None:
        self.query_one("#welcome").display = False
        await self.mount(turn)

    async def clear(self) -> None:
        await self.remove_children(".turn")
        self.query_one("#welcome").display = True
        self.anchor()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.anchor()
