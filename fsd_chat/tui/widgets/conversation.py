"""The turns, below each other; follows the end until the reader scrolls away."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

ABOUT = """\
A small draft model proposes words and the target model judges them. T says how \
far the two may disagree and the draft still have its way: 0 is exactly the \
target, and more is faster and freer."""


class Conversation(VerticalScroll):
    def __init__(self) -> None:
        super().__init__(id="conversation", can_focus=False)

    def compose(self) -> ComposeResult:
        yield Welcome()

    def on_mount(self) -> None:
        self.anchor()

    def welcome(self, pair: str, keys: dict[str, str]) -> None:
        """What the empty conversation says."""
        self.query_one(Welcome).show(pair, keys)

    async def add(self, turn: Widget, before: Widget | None = None) -> None:
        """Below all others, or above `before`."""
        self.query_one(Welcome).display = False
        await self.mount(turn, before=before)

    async def clear(self) -> None:
        await self.remove_children(".turn")
        self.query_one(Welcome).display = True
        self.anchor()

    def page(self, direction: int) -> None:
        """One page up (-1) or down (1); down to the end follows it again."""
        if direction < 0:
            self.scroll_page_up()
        elif self.scroll_y + self.scrollable_content_region.height >= self.max_scroll_y:
            # Textual stops following at any paging, and where it moves nothing for good.
            self.follow()
        else:
            self.scroll_page_down()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.anchor()


class Welcome(Static):
    """What this is, with which models, and the keys that matter."""

    def __init__(self) -> None:
        super().__init__("", id="welcome")

    def show(self, pair: str, keys: dict[str, str]) -> None:
        """keys: what each does, by how it is called."""
        widest = max(map(len, keys), default=0)
        rows = [
            Content.assemble("\n", (key.ljust(widest + 3), "$primary"), what)
            for key, what in keys.items()
        ]
        self.update(
            Content.assemble(
                ("fsd-chat", "bold $primary"),
                "\nA language model on your own machine, through fuzzy speculative decoding.\n\n",
                ABOUT,
                "\n\n",
                (pair, "$secondary"),
                "\n",
                *rows,
            )
        )
