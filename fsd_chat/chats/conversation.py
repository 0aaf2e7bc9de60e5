"""What is kept of a chat."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from fsd_chat.engine.messages import (
    Finished,
    FinishReason,
    Knob,
    KnobSet,
    Message,
    Role,
    Round,
    Sampling,
    TokenRecord,
)
from fsd_chat.engine.statistics import Statistics


class ReplyStart(msgspec.Struct, frozen=True, kw_only=True):
    """With what a reply was asked for."""

    pair: str
    target: str
    draft: str | None
    knob: Knob
    sampling: Sampling
    target_revision: str | None = None
    draft_revision: str | None = None


@dataclass
class Reply:
    """What a model wrote, and how it came about."""

    start: ReplyStart
    seed: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    dropped_turns: int = 0
    """Oldest messages that no longer fitted the context."""
    first_token_s: float | None = None
    """Seconds from the request to the first text."""
    rounds: list[Round] = field(default_factory=list)
    timeline: list[KnobSet] = field(default_factory=list)
    """Each knob setting with the index of the first token it governed."""
    finish: Finished | None = None
    """None: interrupted, by a crash or by an engine that died."""
    failure: str = ""
    """Why it was interrupted, in one line, as far as anybody could tell."""

    @property
    def text(self) -> str:
        rest = self.finish.text if self.finish else ""
        return "".join(round.text for round in self.rounds) + rest

    @property
    def reasoning(self) -> str:
        rest = self.finish.reasoning if self.finish else ""
        return "".join(round.reasoning for round in self.rounds) + rest

    @property
    def tokens(self) -> list[TokenRecord]:
        return [token for round in self.rounds for token in round.tokens]

    @property
    def reason(self) -> FinishReason | None:
        return self.finish.reason if self.finish else None

    def statistics(self) -> Statistics:
        counts = Statistics(time_to_first_token_s=self.first_token_s)
        for round in self.rounds:
            counts.add(round)
        return counts


@dataclass
class StoredMessage:
    id: int
    role: Role
    content: str
    """For a reply, its answer as far as it came."""
    created: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    reply: Reply | None = None


@dataclass
class Chat:
    id: int
    title: str
    pair: str
    system: str
    created: float
    updated: float


@dataclass(frozen=True)
class ChatSummary:
    id: int
    title: str
    updated: float
    messages: int

    @property
    def when(self) -> datetime:
        return datetime.fromtimestamp(self.updated)


@dataclass
class Conversation:
    chat: Chat
    messages: list[StoredMessage] = field(default_factory=list)

    def as_prompt(self) -> tuple[Message, ...]:
        """The conversation as the engine reads it, system prompt first; empty replies left out."""
        system = [Message(role="system", content=self.chat.system)] if self.chat.system else []
        turns = [
            Message(role=message.role, content=message.content)
            for message in self.messages
            if message.content
        ]
        return (*system, *turns)
