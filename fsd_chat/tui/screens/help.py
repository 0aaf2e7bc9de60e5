"""Every key with its id, and every command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from fsd_chat.tui.commands import COMMANDS
from fsd_chat.tui.keys import KEYS, PROMPT_KEYS, Key

KEY_COLUMN = 24


class HelpScreen(ModalScreen[None]):
    BINDINGS = [("escape,q,f1,ctrl+c", "dismiss", "back")]

    def __init__(self, keys: Mapping[str, str]) -> None:
        """keys: what the configuration has changed, by id."""
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Static(Content("\n").join(self._lines()))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _lines(self) -> Iterator[Content]:
        yield Content("Keys").stylize("bold")
        yield from map(self._key, KEYS)
        yield Content("")
        yield Content("In the prompt").stylize("bold")
        yield from map(self._key, PROMPT_KEYS)
        yield _row("up, down at the edge", "what you sent before")
        yield Content("")
        yield Content("Commands").stylize("bold")
        for command in COMMANDS:
            yield _row(command.usage, command.description)
        yield Content("")
        yield Content("Esc goes back. Keys can be changed by id in the configuration: [keys]")

    def _key(self, key: Key) -> Content:
        keys = self._keys.get(key.id, key.keys).replace(",", ", ")
        return _row(keys, key.description, key.id)


def _row(left: str, description: str, id: str = "") -> Content:
    tail = (f"  {id}", "$text-muted") if id else ""
    return Content.assemble((left.ljust(KEY_COLUMN), "$primary"), " ", description, tail)
