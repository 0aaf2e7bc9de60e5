"""What is being said: the conversation, the reply that is being written, and the knob.

Knows no widgets. The screen tells it what the user did and what the engine said, and shows what it
holds afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from fsd_chat.chats.conversation import Conversation, Reply, ReplyStart, StoredMessage
from fsd_chat.chats.store import ChatStore, MessageWaits, ReplyWriter, StoreError, title_of
from fsd_chat.engine.knob import AcceptanceCurve, carry_over, positions, step
from fsd_chat.engine.messages import (
    VERIFIED,
    Command,
    DivergenceName,
    Failed,
    Finished,
    Generate,
    Knob,
    KnobSet,
    LoadPair,
    Ready,
    Round,
    Sampling,
    SetKnob,
    Started,
    Stop,
    TokenRecord,
)
from fsd_chat.engine.statistics import Statistics

REMEMBERED_POSITIONS = 400
"""Verified positions that the knob's steps are measured on."""


@dataclass
class Talk:
    """The state of one chat and of what is under way in it."""

    store: ChatStore
    pair: LoadPair
    knob: Knob
    sampling: Sampling
    send: Callable[[Command], None]
    """To the engine."""
    trouble: Callable[[str], None]
    """One line for people: something could not be kept."""
    system: str = ""
    conversation: Conversation | None = None
    ready: Ready | None = None
    writer: ReplyWriter | None = None
    """The reply that is under way."""
    queued: list[str] = field(default_factory=list)
    """Sent while the engine was busy or not ready."""
    statistics: Statistics = field(default_factory=Statistics)
    """Of the reply under way, or of the last one."""
    drafted: int | None = None
    """In the last round."""
    governed_from: int | None = None
    """Index of the first token that the present knob governs in the reply under way."""
    _request: int = 0
    _verified: deque[TokenRecord] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_POSITIONS)
    )

    @property
    def models(self) -> str:
        """What writes here, for people."""
        if self.ready is not None:
            target, draft = self.ready.target, self.ready.draft
        else:
            target = self.pair.target.location
            draft = self.pair.draft.location if self.pair.draft else None
        return f"{target}, drafted by {draft}" if draft else f"{target} alone, without a draft"

    @property
    def busy(self) -> bool:
        return self.writer is not None

    @property
    def idle(self) -> bool:
        return self.ready is not None and not self.busy

    # --- what the user does ---------------------------------------------------------------

    def say(self, text: str) -> StoredMessage:
        """Keep the user's message; `answer` asks for the reply."""
        if self.conversation is None:
            self.conversation = Conversation(self.store.create_chat(self.pair.name, self.system))
        chat = self.conversation.chat
        try:
            message = self.store.add_user_message(chat.id, text)
        except MessageWaits as error:
            self.trouble(str(error))
            message = error.message
        self._tell_notice()
        chat.title = chat.title or title_of(text)
        self.conversation.messages.append(message)
        return message

    def answer(self) -> StoredMessage | None:
        """Ask the engine to reply to what was said last; the message that will hold the reply."""
        if not self.idle or self.conversation is None or self.ready is None:
            return None
        ready = self.ready
        start = ReplyStart(
            pair=ready.name,
            target=ready.target,
            draft=ready.draft,
            knob=self.knob,
            sampling=self.sampling,
            target_revision=ready.target_revision,
            draft_revision=ready.draft_revision,
        )
        self._request += 1
        prompt = self.conversation.as_prompt()
        self.writer = self.store.begin_reply(self.conversation.chat.id, start)
        self.statistics = Statistics()
        self.governed_from = None
        self.conversation.messages.append(self.writer.message)
        self.send(
            Generate(request=self._request, messages=prompt, knob=self.knob, sampling=self.sampling)
        )
        return self.writer.message

    def take_back_reply(self) -> bool:
        """Take the last reply out of the conversation, so that it can be written again."""
        if self.busy or self.conversation is None or not self.conversation.messages:
            return False
        last = self.conversation.messages[-1]
        if last.role == "assistant":
            self.conversation.messages.pop()
            chat_id = self.conversation.chat.id
            self._keep(lambda: self.store.supersede_from(chat_id, last.id))
        return bool(self.conversation.messages)

    def stop(self) -> bool:
        if self.busy:
            self.send(Stop(request=self._request))
        return self.busy

    def set_system(self, system: str) -> None:
        """The system prompt of this chat and of new ones."""
        self.system = system
        conversation = self.conversation
        if conversation is not None:
            conversation.chat.system = system
            self._keep(lambda: self.store.set_system(conversation.chat.id, system))

    def use_pair(self, pair: LoadPair, knob: Knob) -> None:
        """Another pair is being loaded; what one draft's divergences were says nothing of it."""
        self.pair, self.knob, self.ready = pair, knob, None
        self._verified.clear()

    def new_chat(self) -> list[str]:
        """Leave this chat; what was still waiting in it."""
        waiting, self.queued = self.queued, []
        self.conversation = None
        self.statistics, self.drafted = Statistics(), None
        return waiting

    def open_chat(self, chat_id: int) -> list[str]:
        """Go on with an earlier chat; what was still waiting in this one. Raises StoreError."""
        opened = self.store.open(chat_id)
        waiting = self.new_chat()
        self.conversation = opened
        for message in opened.messages:
            # What another pair's models disagreed on says nothing of these.
            if message.reply is not None and message.reply.start.pair == self.pair.name:
                self._remember(message.reply.tokens)
        return waiting

    # --- the knob ---------------------------------------------------------------------------

    def turn(self, points: float) -> Knob:
        """Turn the threshold by `points` of acceptance (0.05 is five points)."""
        knob = self.knob
        whole_rows = knob.form == "full" and not knob.on_processed
        seen = positions(list(self._verified), knob.divergence if whole_rows else None)
        curve = AcceptanceCurve(seen, knob.rule)
        threshold = step(knob.threshold, points, curve, knob.rule, knob.divergence)
        return self.set_knob(msgspec.structs.replace(knob, threshold=threshold))

    def set_divergence(self, divergence: DivergenceName) -> str:
        """Change the divergence and carry T over to equal acceptance; says what was done."""
        old = self.knob
        carried = carry_over(
            old.threshold, old.divergence, divergence, list(self._verified), old.rule
        )
        threshold = old.threshold if carried is None else carried
        self.set_knob(msgspec.structs.replace(old, divergence=divergence, threshold=threshold))
        if carried is None:
            unknown = "too little has been seen to carry it over"
            return f"divergence {divergence}; T stays at {threshold:.3g}: {unknown}"
        return (
            f"divergence {divergence}; T {old.threshold:.3g} is now {threshold:.3g}, "
            "the same acceptance on the tokens seen so far"
        )

    def set_knob(self, knob: Knob) -> Knob:
        """In force from the next round on, also in a reply under way."""
        self.knob = knob
        self.governed_from = None
        if self.busy:
            self.send(SetKnob(request=self._request, knob=knob))
        return knob

    # --- what the engine says ---------------------------------------------------------------

    def started(self, event: Started) -> None:
        if self.writer is not None and event.request == self._request:
            self.writer.started(event)

    def knob_set(self, event: KnobSet) -> None:
        if self.writer is None or event.request != self._request:
            return
        self.writer.knob(event)
        if event.knob == self.knob:
            self.governed_from = event.index

    def round(self, event: Round) -> None:
        writer = self.writer
        if writer is None or event.request != self._request:
            return
        self._keep(lambda: writer.round(event))
        self.statistics.add(event)
        self.statistics.time_to_first_token_s = writer.reply.first_token_s
        self.drafted = event.drafted
        self._remember(event.tokens)

    def keep_what_is_due(self) -> None:
        """For rounds that come slowly; to be called now and then."""
        if self.writer is not None:
            self._keep(self.writer.flush_if_due)

    def _remember(self, tokens: list[TokenRecord] | tuple[TokenRecord, ...]) -> None:
        self._verified.extend(token for token in tokens if token.origin in VERIFIED)

    def finished(self, event: Finished) -> Reply | None:
        if event.request != self._request:
            return None
        writer, self.writer = self.writer, None
        if writer is None:
            return None
        self._keep(lambda: writer.finished(event))
        return self._close(writer)

    def failed(self, event: Failed) -> Reply | None:
        """The reply is over; what there is of it stays."""
        return self.interrupted(event.message) if event.request == self._request else None

    def interrupted(self, why: str) -> Reply | None:
        """The engine is gone, or gave up, or the user leaves."""
        writer, self.writer = self.writer, None
        if writer is None:
            return None
        self._keep(lambda: writer.interrupted(why))
        return self._close(writer)

    def _close(self, writer: ReplyWriter) -> Reply | None:
        """The reply that came of it; a message without any token is no message."""
        self._tell_notice()
        if writer.reply.rounds:
            return writer.reply
        if self.conversation is not None and writer.message in self.conversation.messages:
            self.conversation.messages.remove(writer.message)
        return None

    def _keep(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreError as error:
            self.trouble(str(error))

    def _tell_notice(self) -> None:
        notice = self.store.take_notice()
        if notice:
            self.trouble(notice)
