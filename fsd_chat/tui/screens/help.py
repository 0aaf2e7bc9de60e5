"""Every key with its id, and every command."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from fsd_chat.tui.commands import COMMANDS
from fsd_chat.tui.keys import BOUND_KEYS, PROMPT_KEYS, Key, keys_of

LAST = "Esc goes back. Keys are changed by their id, in the configuration under [keys]."


class HelpScreen(ModalScreen[None]):
    BINDINGS = [("escape,q,f1", "dismiss", "back")]

    def __init__(self, keys: Mapping[str, str]) -> None:
        """keys: what the configuration has changed, by id."""
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Static("Keys", classes="heading")
            yield from (Row(*self._key(key)) for key in BOUND_KEYS)
            yield Static("In the prompt", classes="heading later")
            yield from (Row(*self._key(key)) for key in PROMPT_KEYS)
            yield Row("↑, ↓ at the edge", "what you sent before")
            yield Static("Commands", classes="heading later")
            yield from (Row(command.usage, command.description) for command in COMMANDS)
            yield Static(LAST, classes="last", markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _key(self, key: Key) -> tuple[str, str, str]:
        return keys_of(key.id, self._keys), key.description, key.id


class Row(Horizontal):
    """A key or a command, what it does, and the id it can be changed by."""

    def __init__(self, keys: str, description: str, id: str = "") -> None:
        super().__init__(classes="help")
        self._texts = keys, description, id

    def compose(self) -> ComposeResult:
        for text, column in zip(self._texts, ("keys", "what", "id"), strict=True):
            yield Static(text, classes=column, markup=False)
