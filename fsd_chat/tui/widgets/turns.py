"""One turn of the conversation each: what the user said, what the model wrote."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Collapsible, Markdown, Static

from fsd_chat.chats.conversation import Reply, StoredMessage
from fsd_chat.chats.display import one_line, plain
from fsd_chat.chats.export import footer

FENCE_PATIENCE = 400
"""Characters of an open code fence after which it is drawn less often: each time, all of it is
highlighted again."""


class UserTurn(Vertical):
    def __init__(self, message: StoredMessage, *, waiting: bool = False) -> None:
        super().__init__(classes="turn user")
        self.message = message
        self.set_class(waiting, "waiting")

    def compose(self) -> ComposeResult:
        yield Static("you", classes="speaker", markup=False)
        yield Static(Content(plain(self.message.content)), classes="said")

    def asked(self) -> None:
        self.remove_class("waiting")


class ReplyTurn(Vertical):
    """A reply as Markdown, while it is written and after."""

    def __init__(self, message: StoredMessage, speaker: str) -> None:
        super().__init__(classes="turn reply")
        self.message = message
        self._speaker = speaker
        self._text = Markdown(classes="text", open_links=False)
        self._thoughts = Static("", classes="thoughts", markup=False)
        self._reasoning = Collapsible(self._thoughts, title="thinking", collapsed=False)
        self._footer = Static("", classes="footer", markup=False)
        self._shown = ""
        self._pending = ""
        self._thought = ""

    def compose(self) -> ComposeResult:
        yield Static(one_line(self._speaker, 60), classes="speaker", markup=False)
        yield self._reasoning
        yield self._text
        yield self._footer

    async def on_mount(self) -> None:
        self._reasoning.display = False
        reply = self.message.reply
        if reply is not None and reply.rounds:
            await self.conclude(reply)
        elif self.message.content:
            await self._text.update(plain(self.message.content))

    def add(self, text: str, reasoning: str) -> None:
        """Text that has come; it is drawn at the next `draw`."""
        self._pending += text
        self._thought += reasoning

    async def draw(self) -> None:
        if self._thought:
            self._reasoning.display = True
            self._thoughts.update(Content(plain(self._thought).strip()))
        if not self._pending or self._fence_can_wait():
            return
        if self._thought and not self._shown:
            self._reasoning.title = "thought"
            self._reasoning.collapsed = True
        text, self._pending = plain(self._pending), ""
        self._shown += text
        await self._text.append(text)

    def _fence_can_wait(self) -> bool:
        tail = self._shown.rpartition("```")[2]
        in_fence = self._shown.count("```") % 2 == 1 and len(tail) > FENCE_PATIENCE
        return in_fence and len(self._pending) < len(tail) // 20 and "```" not in self._pending

    async def conclude(self, reply: Reply) -> None:
        """The reply is over: show all of it, whatever was shown so far, and what it cost."""
        self._pending = ""
        whole = plain(reply.text)
        if whole != self._text.source:
            await self._text.update(whole)
        self._shown = whole
        thought = plain(reply.reasoning).strip()
        self._reasoning.display = bool(thought)
        if thought:
            self._thoughts.update(Content(thought))
            self._reasoning.title = "thought"
            self._reasoning.collapsed = True
        self._footer.update(footer(reply))

    @property
    def source(self) -> str:
        """The Markdown that is shown."""
        return self._text.source
