"""The chat itself: connects the widgets to the talk, and both to the engine's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container
from textual.widgets import Markdown, TextArea

from fsd_chat.chats.conversation import Reply, StoredMessage
from fsd_chat.chats.display import one_line
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
from fsd_chat.tui.commands import complete, hint, is_command
from fsd_chat.tui.first_frame import side_margin
from fsd_chat.tui.keys import CHAT_KEYS, bindings, keys_of, prompt_keys
from fsd_chat.tui.overview import overview
from fsd_chat.tui.screens.slash import SlashCommands
from fsd_chat.tui.talk import Talk
from fsd_chat.tui.widgets.conversation import Conversation
from fsd_chat.tui.widgets.prompt import Prompt
from fsd_chat.tui.widgets.status import StatusBar
from fsd_chat.tui.widgets.turns import ReplyTurn, UserTurn

if TYPE_CHECKING:
    from fsd_chat.tui.app import ChatApp

DRAWS_PER_SECOND = 20
WELCOME_KEYS = {
    "threshold.finer-up": "T up, also while a reply is being written",
    "threshold.finer-down": "T down",
    "app.help": "every key and command",
}


class ChatScreen(SlashCommands):
    BINDINGS = bindings(CHAT_KEYS)

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self.talk = talk
        self.activity = "starting"
        self.detail = ""
        """More about the activity, where there is room for it."""
        self._writing: ReplyTurn | None = None
        self._waiting: list[UserTurn] = []

    @property
    def chat_app(self) -> ChatApp:
        from fsd_chat.tui.app import ChatApp

        assert isinstance(self.app, ChatApp)
        return self.app

    def compose(self) -> ComposeResult:
        yield Conversation()
        with Container(id="write"):
            yield Prompt(prompt_keys(self.chat_app.config.keys))
        yield StatusBar(id="status")

    def on_mount(self) -> None:
        self.query_one(Prompt).focus()
        self.show_welcome()
        self.show_status()
        self.set_interval(1 / DRAWS_PER_SECOND, self._draw)

    def on_resize(self, event: events.Resize) -> None:
        margin = side_margin(event.size.width)
        self.query_one(Conversation).styles.padding = (1, margin + 1, 0, margin + 1)
        self.query_one("#write").styles.padding = (0, margin)

    # --- what the engine says ---------------------------------------------------------------

    async def heard(self, event: Event) -> None:
        match event:
            case Loading():
                share = "" if event.fraction is None else f" {event.fraction:.0%}"
                self._is("loading" + share, event.stage)
            case Ready():
                self._is_ready(event)
            case Started():
                self.talk.started(event)
                self._is_reading()
                if event.dropped_turns:
                    self.say(f"{event.dropped_turns} oldest messages no longer fit the context")
            case Prefill():
                self._is_reading(f" {event.done / event.total:.0%}" if event.total else "")
            case KnobSet():
                self.talk.knob_set(event)
            case Round():
                self._wrote(event)
                return
            case Finished():
                if self._writing is not None:
                    self._writing.add(event.text, event.reasoning)
                await self._conclude(self.talk.finished(event))
            case Failed():
                await self._failed(event)
            case _:
                return
        self.show_status()

    def _is(self, activity: str, detail: str = "") -> None:
        self.activity, self.detail = activity, detail

    def _is_ready(self, event: Ready) -> None:
        self.talk.ready = event
        self._is("ready")
        for notice in event.notices:
            self.say(notice, severity="warning")
        self.show_welcome()
        self.call_later(self._next_queued)

    def _is_reading(self, share: str = "") -> None:
        if self.activity != "stopping":
            self._is(f"reading the prompt{share}")
        if self._writing is not None:
            self._writing.note(self.activity)

    def _wrote(self, event: Round) -> None:
        """Drawn later, together with what else comes until then."""
        if self.activity != "stopping":
            self._is("writing")
        self.talk.round(event)
        if self._writing is not None:
            self._writing.add(event.text, event.reasoning)

    async def _failed(self, event: Failed) -> None:
        self.say(event.message, severity="error")
        if event.request is not None:
            await self._conclude(self.talk.failed(event))
        elif self.talk.ready is None:
            self._is("no model")

    async def lost(self, log: str, again: bool) -> None:
        """The engine's process is gone."""
        reply = self.talk.interrupted("the engine stopped unexpectedly")
        self.talk.ready = None
        await self._conclude(reply)
        what_next = "starting another one" if again else "/restart tries again"
        self.say(f"the engine stopped unexpectedly; {what_next}. Its log: {log}", severity="error")
        self._is("starting" if again else "engine stopped")
        self.show_status()

    async def _conclude(self, reply: Reply | None) -> None:
        turn, self._writing = self._writing, None
        if turn is not None:
            if reply is None:
                await turn.remove()
            else:
                await turn.conclude(reply)
        if self.talk.ready is not None:
            self._is("ready")
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
            await self._ask(text)
        else:
            self.talk.queued.append(text)
            turn = UserTurn(StoredMessage(0, "user", text), waiting=True)
            self._waiting.append(turn)
            await self.query_one(Conversation).add(turn)
            if self.activity in ("no model", "engine stopped"):
                self.say("no model is there to answer yet: /pair NAME loads one, /restart the last")
        self.follow()

    async def _next_queued(self) -> None:
        if self.talk.idle and self.talk.queued:
            text = self.talk.queued.pop(0)
            await self._waiting.pop(0).remove()
            await self._ask(text)

    async def _ask(self, text: str) -> None:
        conversation = self.query_one(Conversation)
        waiting = self._waiting[0] if self._waiting else None
        await conversation.add(UserTurn(self.talk.say(text)), before=waiting)
        await self.answer()

    async def answer(self) -> None:
        message = self.talk.answer()
        if message is None:
            return
        self._writing = ReplyTurn(message, self._speaker(message))
        waiting = self._waiting[0] if self._waiting else None
        await self.query_one(Conversation).add(self._writing, before=waiting)
        self._is_reading()
        self.show_status()

    def _speaker(self, message: StoredMessage) -> str:
        """The pair that replied, where it is not the one that the chat began with."""
        talk = self.talk
        pair = message.reply.start.pair if message.reply else ""
        return pair if talk.conversation and pair != talk.conversation.chat.pair else ""

    def on_key(self, event: events.Key) -> None:
        """What is typed belongs in the prompt, wherever the focus went."""
        prompt = self.query_one(Prompt)
        if event.is_printable and event.character and not prompt.has_focus:
            event.stop()
            prompt.focus()
            prompt.insert(event.character)

    @on(TextArea.Changed, "#prompt")
    def _typed(self) -> None:
        prompt = self.query_one(Prompt)
        prompt.hint(hint(prompt.text, self.choices()))

    @on(Prompt.Completing)
    def _complete(self) -> None:
        prompt = self.query_one(Prompt)
        prompt.replace_text(complete(prompt.text, self.choices()))

    def begin_command(self, text: str) -> None:
        """Let the user finish a command."""
        self.query_one(Prompt).focus()
        self.query_one(Prompt).replace_text(text)

    @on(Prompt.Page)
    def _page(self, event: Prompt.Page) -> None:
        self.query_one(Conversation).page(event.direction)

    @on(Markdown.LinkClicked)
    def _link(self, event: Markdown.LinkClicked) -> None:
        """Where a model's link leads is for the reader to see before anything goes there."""
        self.app.copy_to_clipboard(event.href)
        self.say(f"copied {one_line(event.href, 200)}")

    # --- what is shown ----------------------------------------------------------------------

    def follow(self) -> None:
        self.query_one(Conversation).follow()

    async def show_conversation(self, waiting: list[str]) -> None:
        """All turns anew: another chat, or one that lost its last reply. What was still waiting
        in the chat before goes back into the prompt."""
        view = self.query_one(Conversation)
        await view.clear()
        self._waiting.clear()
        self._writing = None
        messages = self.talk.conversation.messages if self.talk.conversation else []
        for message in messages:
            if message.role == "assistant":
                await view.add(ReplyTurn(message, self._speaker(message)))
            else:
                await view.add(UserTurn(message))
        if waiting:
            self.query_one(Prompt).give_back(*waiting)
        self.follow()
        self.show_status()

    async def _draw(self) -> None:
        if self._writing is not None:
            await self._writing.draw()
            self.talk.keep_what_is_due()
            self.show_status()

    def show_welcome(self) -> None:
        keys = self.chat_app.config.keys
        self.query_one(Conversation).welcome(
            one_line(self.talk.models, 90),
            {keys_of(name, keys): what for name, what in WELCOME_KEYS.items()},
        )

    def show_status(self) -> None:
        status = overview(self.talk, self.activity, self.detail, self.just_turned)
        self.query_one(StatusBar).status = status
