"""The chat itself: connects the widgets to the talk, and both to the engine's events."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.screen import Screen

from fsd_chat.chats.conversation import Reply, StoredMessage
from fsd_chat.chats.display import one_line
from fsd_chat.engine.knob import BOUNDS, KNOB_MAXIMUM
from fsd_chat.engine.messages import (
    Event,
    Failed,
    Finished,
    KnobSet,
    Loading,
    Prefill,
    Ready,
    Round,
    Started,
)
from fsd_chat.tui.commands import is_command
from fsd_chat.tui.keys import bindings, prompt_keys
from fsd_chat.tui.screens.actions import ChatActions
from fsd_chat.tui.talk import Talk
from fsd_chat.tui.widgets.conversation import Conversation
from fsd_chat.tui.widgets.prompt import Prompt
from fsd_chat.tui.widgets.status import Status, StatusBar
from fsd_chat.tui.widgets.turns import ReplyTurn, UserTurn

if TYPE_CHECKING:
    from fsd_chat.tui.app import ChatApp

DRAWS_PER_SECOND = 20


class ChatScreen(ChatActions, Screen[None]):
    BINDINGS = bindings()

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self.talk = talk
        self.activity = "starting"
        self._writing: ReplyTurn | None = None
        self._waiting: list[UserTurn] = []

    @property
    def chat_app(self) -> ChatApp:
        from fsd_chat.tui.app import ChatApp

        assert isinstance(self.app, ChatApp)
        return self.app

    def compose(self) -> ComposeResult:
        yield Conversation()
        yield Prompt(prompt_keys(self.chat_app.config.keys))
        yield StatusBar(id="status")

    def on_mount(self) -> None:
        self.query_one(Prompt).focus()
        self.show_welcome()
        self.show_status()
        self.set_interval(1 / DRAWS_PER_SECOND, self._draw)

    # --- what the engine says ---------------------------------------------------------------

    async def heard(self, event: Event) -> None:
        match event:
            case Loading():
                share = "" if event.fraction is None else f" {event.fraction:.0%}"
                self.activity = f"loading{share}"
            case Ready():
                self._is_ready(event)
            case Started():
                self.talk.started(event)
                self.activity = "reading the prompt"
                if event.dropped_turns:
                    self.say(f"{event.dropped_turns} oldest messages no longer fit the context")
            case Prefill():
                self.activity = "reading the prompt"
            case KnobSet():
                self.talk.knob_set(event)
            case Round():
                self.activity = "writing"
                self.talk.round(event)
                if self._writing is not None:
                    self._writing.add(event.text, event.reasoning)
                return
            case Finished():
                await self._conclude(self.talk.finished(event))
            case Failed():
                await self._failed(event)
            case _:
                return
        self.show_status()

    def _is_ready(self, event: Ready) -> None:
        self.talk.ready = event
        self.activity = "ready"
        for notice in event.notices:
            self.say(notice, severity="warning")
        self.show_welcome()
        self.call_later(self._next_queued)

    async def _failed(self, event: Failed) -> None:
        self.say(event.message, severity="error")
        if event.request is not None:
            await self._conclude(self.talk.failed(event))
        elif self.talk.ready is None:
            self.activity = "no model"

    async def lost(self, log: str, again: bool) -> None:
        """The engine's process is gone."""
        reply = self.talk.interrupted()
        self.talk.ready = None
        await self._conclude(reply)
        what_next = "starting another one" if again else "/restart tries again"
        self.say(f"the engine stopped unexpectedly; {what_next}. Its log: {log}", severity="error")
        self.activity = "starting" if again else "engine stopped"
        self.show_status()

    async def _conclude(self, reply: Reply | None) -> None:
        turn, self._writing = self._writing, None
        if turn is not None:
            if reply is None:
                await turn.remove()
            else:
                await turn.conclude(reply)
        if self.talk.ready is not None:
            self.activity = "ready"
        self.show_status()
        self.call_later(self._next_queued)

    # --- what the user says -----------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, event: Prompt.Sent) -> None:
        if not is_command(event.text):
            await self.take(event.text.strip("\n"))
        elif not await self.ran_as_command(event.text):
            self.query_one(Prompt).give_back(event.text)

    async def take(self, text: str) -> None:
        """A message for the model; it waits where the model cannot reply yet."""
        if self.talk.idle and not self.talk.queued:
            await self._ask(self.talk.say(text))
            return
        self.talk.queued.append(text)
        turn = UserTurn(StoredMessage(0, "user", text), waiting=True)
        self._waiting.append(turn)
        await self.query_one(Conversation).add(turn)
        self.query_one(Conversation).follow()

    async def _next_queued(self) -> None:
        if not (self.talk.idle and self.talk.queued):
            return
        text = self.talk.queued.pop(0)
        if self._waiting:
            await self._waiting.pop(0).remove()
        await self._ask(self.talk.say(text))

    async def _ask(self, message: StoredMessage) -> None:
        await self.query_one(Conversation).add(UserTurn(message))
        await self.answer()

    async def answer(self) -> None:
        message = self.talk.answer()
        if message is None:
            return
        self._writing = ReplyTurn(message, self.speaker(message))
        conversation = self.query_one(Conversation)
        await conversation.add(self._writing)
        conversation.follow()
        self.activity = "reading the prompt"
        self.show_status()

    def speaker(self, message: StoredMessage) -> str:
        return message.reply.start.target if message.reply else self.talk.pair.name

    def focus_prompt(self) -> None:
        self.query_one(Prompt).focus()

    @on(Prompt.Page)
    def _page(self, event: Prompt.Page) -> None:
        conversation = self.query_one(Conversation)
        if event.direction < 0:
            conversation.scroll_page_up()
        else:
            conversation.scroll_page_down()

    # --- what is shown ----------------------------------------------------------------------

    async def show_conversation(self) -> None:
        """All turns anew: another chat, or one that lost its last reply."""
        view = self.query_one(Conversation)
        await view.clear()
        self._waiting.clear()
        self._writing = None
        messages = self.talk.conversation.messages if self.talk.conversation else []
        for message in messages:
            if message.role == "assistant":
                await view.add(ReplyTurn(message, self.speaker(message)))
            else:
                await view.add(UserTurn(message))
        view.follow()
        self.show_status()

    async def _draw(self) -> None:
        if self._writing is not None:
            await self._writing.draw()
            self.show_status()

    def show_welcome(self) -> None:
        pair = self.talk.pair
        draft = pair.draft.location if pair.draft else "nothing"
        text = f"target {pair.target.location}, drafted by {draft}"
        self.query_one(Conversation).welcome(one_line(text, 70))

    def show_status(self) -> None:
        self.query_one(StatusBar).status = self.status()

    def status(self) -> Status:
        talk, counts = self.talk, self.talk.statistics
        return Status(
            pair=talk.pair.name,
            rule=talk.knob.rule,
            divergence="" if talk.knob.rule in ("exact", "target-only") else talk.knob.divergence,
            threshold=talk.knob.threshold,
            gauge=self._gauge(),
            activity=self.activity,
            acceptance=counts.acceptance,
            recent_acceptance=counts.recent_acceptance,
            exact_acceptance=counts.exact_acceptance,
            fuzzy_share=counts.fuzzy / counts.output if counts.output else None,
            tokens_per_second=counts.tokens_per_second,
            tokens_per_round=counts.tokens_per_round,
            drafted=talk.drafted,
            from_token=talk.governed_from if talk.busy else None,
        )

    def _gauge(self) -> float:
        knob = self.talk.knob
        if knob.rule in KNOB_MAXIMUM:
            return knob.threshold / KNOB_MAXIMUM[knob.rule]
        bound = BOUNDS[knob.divergence]
        if math.isinf(bound):
            return knob.threshold / (1 + knob.threshold)
        return min(1.0, knob.threshold / bound)
