"""Earlier chats: type to search, Enter opens."""

from __future__ import annotations

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from fsd_chat.chats.conversation import ChatSummary
from fsd_chat.chats.display import one_line
from fsd_chat.chats.store import ChatStore, StoreError
from fsd_chat.tui.widgets.status import FAINT

LIST_MARGIN = 4
"""Cells that the list keeps for its own padding and scrollbar."""


class ChatsScreen(ModalScreen[int | None]):
    """Dismissed with the id of the chat to open."""

    BINDINGS = [
        Binding("escape", "dismiss(None)", "back"),
        Binding("down", "move(1)", "next", show=False, priority=True),
        Binding("up", "move(-1)", "previous", show=False, priority=True),
        Binding("enter", "open", "open", show=False, priority=True),
    ]

    def __init__(self, store: ChatStore) -> None:
        super().__init__()
        self._store = store

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static("Earlier chats", classes="heading")
            yield Input(placeholder="search titles and messages", id="search")
            yield OptionList(id="found", markup=False)
            yield Static("", id="empty", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.call_after_refresh(self._search, "")

    @on(Input.Changed, "#search")
    def _typed(self, event: Input.Changed) -> None:
        self._search(event.value)

    def _search(self, wanted: str) -> None:
        listed = self.query_one("#found", OptionList)
        empty = self.query_one("#empty", Static)
        try:
            chats = self._store.chats(wanted)
            nothing = f"no chat contains {one_line(wanted, 40)!r}" if wanted else "no chats yet"
        except StoreError as error:
            chats, nothing = [], str(error)
        listed.clear_options()
        width = self.query_one(".dialog").content_size.width - LIST_MARGIN
        listed.add_options([Option(_line(chat, width), id=str(chat.id)) for chat in chats])
        listed.display = bool(chats)
        empty.update("" if chats else nothing)
        if chats:
            listed.highlighted = 0

    def action_move(self, by: int) -> None:
        listed = self.query_one("#found", OptionList)
        if by > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def action_open(self) -> None:
        listed = self.query_one("#found", OptionList)
        if listed.highlighted is not None and listed.option_count:
            self._choose(listed.get_option_at_index(listed.highlighted))

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option)

    def _choose(self, option: Option) -> None:
        if option.id is not None:
            self.dismiss(int(option.id))


def _line(chat: ChatSummary, width: int) -> Content:
    when = f"{chat.when:%Y-%m-%d %H:%M}  "
    count = f"  {chat.messages}"
    room = max(10, width - len(when) - len(count))
    title = one_line(chat.title, room) or "(no title)"
    gap = " " * max(0, room - cell_len(title))
    return Content.assemble((when, FAINT), title, gap, (count, FAINT))
