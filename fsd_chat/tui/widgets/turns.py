"""One turn of the conversation each: what the user said, what the model wrote."""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Collapsible, Markdown, Static

from fsd_chat.chats.conversation import Reply, StoredMessage
from fsd_chat.chats.display import one_line, plain
from fsd_chat.tui.markdown import parser
from fsd_chat.tui.widgets.status import short

REST = 3
"""So many times as long as a drawing took, nothing is drawn again: of a long list or code fence
each drawing does all of it anew."""
LONGEST_REST_S = 1.0
MOST_TURNS = 4
"""Thresholds that are all named below a reply."""


class UserTurn(Static):
    def __init__(self, message: StoredMessage, *, waiting: bool = False) -> None:
        """waiting: it has not reached the model yet."""
        later = Content.styled("\nis sent as soon as the model is free", "$text-muted")
        said = Content(plain(message.content))
        super().__init__(said + later if waiting else said, classes="turn user")
        self.message = message
        self.set_class(waiting, "waiting")


class ReplyTurn(Vertical):
    """A reply as Markdown, while it is written and after."""

    def __init__(self, message: StoredMessage, speaker: str = "") -> None:
        """speaker: who wrote it, where that has to be said."""
        super().__init__(classes="turn reply")
        self.message = message
        self._speaker = speaker
        self._text = Markdown(classes="text", open_links=False, parser_factory=parser)
        self._reasoning: Reasoning | None = None
        self._footer = Static("", classes="footer", markup=False)
        self._pending = ""
        self._pending_thought = ""
        self._rest_until = 0.0

    def compose(self) -> ComposeResult:
        yield self._text
        yield self._footer

    async def on_mount(self) -> None:
        reply = self.message.reply
        if reply is not None and reply.rounds:
            self.add(reply.text, reply.reasoning)
            await self.conclude(reply)
        elif self.message.content:
            await self._text.update(plain(self.message.content))

    def note(self, text: str | Content) -> None:
        """What there is to say below the text."""
        self._footer.update(text)
        self._footer.display = bool(text)

    def add(self, text: str, reasoning: str) -> None:
        """Text that has come; it is drawn at the next `draw`."""
        self._pending += text
        self._pending_thought += reasoning

    async def draw(self) -> None:
        began = time.monotonic()
        if began >= self._rest_until and (self._pending or self._pending_thought):
            await self._draw_all()
            now = time.monotonic()
            self._rest_until = now + min(LONGEST_REST_S, REST * (now - began))

    async def _draw_all(self) -> None:
        text, self._pending = plain(self._pending), ""
        thought, self._pending_thought = plain(self._pending_thought), ""
        if thought:
            await self._think(thought)
        if text:
            if not self.source:
                self.note("")
                self._fold()
            await self._text.append(text)

    async def _think(self, thought: str) -> None:
        if self._reasoning is None:
            self._reasoning = Reasoning()
            await self.mount(self._reasoning, before=self._text)
            self.note("")
        self._reasoning.add(thought)

    def _fold(self) -> None:
        if self._reasoning is not None:
            self._reasoning.fold()

    async def conclude(self, reply: Reply) -> None:
        """The reply is over: show all of it, whatever was shown so far, and what it cost."""
        await self._draw_all()
        # Where a line end came in two pieces, or an event was missed.
        whole = plain(reply.text)
        if whole != self.source:
            await self._text.update(whole)
        self._fold()
        self.note(cost(reply, self._speaker))

    @property
    def source(self) -> str:
        """The Markdown that is shown."""
        return self._text.source


ENDED = {
    "stopped": "stopped",
    "length": "reached the most tokens",
    "context": "reached the end of the context",
    "stop-string": "reached a stop string",
}
"""How a reply ended, where it is not for itself."""


def cost(reply: Reply, speaker: str = "") -> Content:
    """What the reply cost and what the knob did, in one line where it can be."""
    counts = reply.statistics()
    parts = [Content(one_line(speaker, 30))] if speaker else []
    parts.append(Content(f"{counts.output} tokens"))
    if counts.tokens_per_second is not None:
        parts.append(Content(f"{counts.tokens_per_second:.1f} tok/s"))
    if counts.acceptance is not None:
        exact = counts.exact_acceptance
        aside = "" if exact is None else f" (exact {exact:.0%})"
        parts.append(Content(f"accepted {counts.acceptance:.0%}{aside}"))
    if counts.fuzzy:
        share = f"fuzzy {counts.fuzzy / counts.output:.0%}"
        parts.append(Content.styled(share, "$origin-fuzzy"))
    if turns := _turns(reply):
        parts.append(Content.styled("T\N{NO-BREAK SPACE}" + "→".join(turns), "$gauge"))
    if reply.reason != "end":
        parts.append(Content(ENDED[reply.reason] if reply.reason else "interrupted"))
    return Content(" · ").join(parts)


def _turns(reply: Reply) -> list[str]:
    """Every T of the reply, in order; the middle left out of many."""
    found: list[str] = []
    for setting in reply.timeline:
        threshold = short(setting.knob.threshold)
        if [threshold] != found[-1:]:
            found.append(threshold)
    return found if len(found) <= MOST_TURNS else [found[0], "…", *found[-2:]]


class Reasoning(Collapsible):
    """What the model thought before it answered."""

    def __init__(self) -> None:
        self._text = Static("", classes="thoughts", markup=False)
        self._thought = ""
        super().__init__(self._text, title="thinking", collapsed=False)

    def add(self, thought: str) -> None:
        self._thought += thought
        self._text.update(Content(self._thought.strip()))

    def fold(self) -> None:
        """The answer has begun."""
        self.title = "thought"
        self.collapsed = True

    @property
    def thought(self) -> str:
        return self._thought
