"""A running app, and short names for what tests do with it and look at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from textual.pilot import Pilot
from textual.widgets import Markdown
from ui.scripted import Engines, ScriptedEngine, wait_until

from fsd_chat.chats.conversation import Conversation, Reply
from fsd_chat.engine.messages import Generate
from fsd_chat.tui.app import ChatApp
from fsd_chat.tui.widgets.prompt import Prompt
from fsd_chat.tui.widgets.turns import ReplyTurn, UserTurn

NARROW, WIDE = (80, 24), (120, 40)


@dataclass
class Chat:
    app: ChatApp
    pilot: Pilot[None]
    engines: Engines

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines.now

    @property
    def prompt(self) -> Prompt:
        return self.app.chat.query_one(Prompt)

    @property
    def notices(self) -> list[str]:
        return [str(notice.message) for notice in self.app._notifications]

    @property
    def replies(self) -> list[str]:
        return [turn.source for turn in self.app.chat.query(ReplyTurn)]

    @property
    def said(self) -> list[str]:
        return [turn.message.content for turn in self.app.chat.query(UserTurn)]

    @property
    def activity(self) -> str:
        return self.app.chat.activity

    @property
    def conversation(self) -> Conversation:
        assert self.app.talk.conversation is not None
        return self.app.talk.conversation

    @property
    def stored(self) -> Conversation:
        """The same chat as the history has it."""
        return self.app.talk.store.open(self.conversation.chat.id)

    @property
    def stored_reply(self) -> Reply:
        reply = self.stored.messages[-1].reply
        assert reply is not None
        return reply

    async def until(self, true: Callable[[], object]) -> None:
        await wait_until(self.pilot, true)

    async def ready(self) -> None:
        await self.until(lambda: self.engines.made and self.engine.sent)
        self.engine.ready()
        await self.until(lambda: self.app.talk.ready is not None)

    def type(self, text: str) -> None:
        self.prompt.insert(text)

    async def enter(self, text: str) -> None:
        """What somebody types and sends."""
        self.type(text)
        await self.pilot.press("enter")

    async def ask(self, text: str) -> None:
        """Send a message and wait until the engine has been asked."""
        before = len(self.engine.of(Generate))
        await self.enter(text)
        await self.until(lambda: len(self.engine.of(Generate)) > before)

    async def answered(self) -> None:
        await self.until(lambda: not self.app.talk.busy and self.app.chat._writing is None)

    async def told(self, text: str) -> None:
        """Until a notice says so."""
        await self.until(lambda: any(text in notice for notice in self.notices))

    async def shown(self, text: str) -> None:
        """Until the last reply shows so."""
        await self.until(lambda: self.replies and text in self.replies[-1])

    def markdown(self) -> Markdown:
        return self.app.chat.query(ReplyTurn).last().query_one(Markdown)


MakeApp = Callable[..., ChatApp]
Running = Callable[..., AbstractAsyncContextManager[Chat]]
