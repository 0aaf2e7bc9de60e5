"""Where one writes: grows with the text, Enter sends."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text
from textual import events
from textual.content import Content
from textual.message import Message
from textual.widgets import TextArea

from fsd_chat.chats.display import plain
from fsd_chat.tui.first_frame import PLACEHOLDER

SEND, NEW_LINE, COMPLETE, PAGE_UP, PAGE_DOWN = (
    "prompt.send",
    "prompt.new-line",
    "prompt.complete",
    "prompt.page-up",
    "prompt.page-down",
)


class Prompt(TextArea):
    """Enter sends; Shift+Enter, Alt+Enter and Ctrl+J begin a new line. Up and Down at the edges
    bring back what was sent before.

    These keys are read here and not bound: a binding would overtake letters that were typed
    before it and still wait their turn.
    """

    class Sent(Message):
        """The text has left the prompt."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Completing(Message):
        """The writer wants the command that is half typed to be completed."""

    class Page(Message):
        """The reader wants the conversation to move, by one page up (-1) or down (1)."""

        def __init__(self, direction: int) -> None:
            super().__init__()
            self.direction = direction

    def __init__(self, keys: Mapping[str, frozenset[str]]) -> None:
        """keys: which keys do what, by the ids above."""
        super().__init__(
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder=PLACEHOLDER,
            id="prompt",
        )
        self._keys = keys
        self._sent: list[str] = []
        self._back = 0
        self._unsent = ""
        """What stood here before the writer went back to what was sent."""

    def give_back(self, *texts: str) -> None:
        """What was sent could not be taken; it goes above whatever was typed since."""
        for text in texts:
            if text in self._sent:
                self._sent.remove(text)
        self.replace_text("\n".join([*texts, *([self.text] if self.text else [])]))

    def replace_text(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def hint(self, text: str) -> None:
        """One line about the command that is being typed; empty for none."""
        self.border_subtitle = Content(text) if text else None

    def get_line(self, line_index: int) -> Text:
        """What is shown of a line: a paste may hold anything, and goes to the model as it is."""
        line = super().get_line(line_index)
        line.plain = plain(line.plain).replace("\n", " ")
        return line

    async def _on_key(self, event: events.Key) -> None:
        # Terminals that report modifiers the older way name Enter by its character.
        if self._acted_on(event.key.replace("\r", "enter")):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _acted_on(self, key: str) -> bool:
        if key in self._keys[SEND]:
            self._send()
        elif key in self._keys[NEW_LINE]:
            self.insert("\n")
        elif key in self._keys[COMPLETE] and self.text.startswith("/"):
            self.post_message(self.Completing())
        elif key in self._keys[PAGE_UP] or key in self._keys[PAGE_DOWN]:
            self.post_message(self.Page(-1 if key in self._keys[PAGE_UP] else 1))
        else:
            return self._brought_back(key)
        return True

    def _send(self) -> None:
        text = self.text
        if text.strip():
            self._sent.append(text)
            self._back = 0
            self.clear()
            self.post_message(self.Sent(text))

    def _brought_back(self, key: str) -> bool:
        """Something that was sent before, where the cursor can go no further."""
        row = self.wrapped_document.location_to_offset(self.cursor_location).y
        older = key == "up" and row == 0 and self._back < len(self._sent)
        newer = key == "down" and row == self.wrapped_document.height - 1 and self._back > 0
        if not older and not newer:
            return False
        if self._back == 0:
            self._unsent = self.text
        self._back += 1 if older else -1
        self.replace_text(self._sent[-self._back] if self._back else self._unsent)
        return True
