"""A reply on its way to the file: appended to while it is written, read back in one go."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fsd_chat.chats.conversation import Reply, ReplyStart, StoredMessage
from fsd_chat.chats.database import Database, Statement
from fsd_chat.chats.display import encodable
from fsd_chat.engine.messages import Failed, Finished, KnobSet, Round, Started

FLUSH_EVERY_S = 0.25
"""At most so much of a reply is lost in a crash."""

_encode = msgspec.msgpack.Encoder().encode
_decode_start = msgspec.msgpack.Decoder(ReplyStart).decode
_decode_finish = msgspec.msgpack.Decoder(Finished).decode
_decode_rounds = msgspec.msgpack.Decoder(list[Round]).decode
_decode_timeline = msgspec.msgpack.Decoder(list[KnobSet]).decode


class ReplyWriter:
    """Keeps one reply while it is written; a flush costs what is new, however long the reply is.

    Every method that writes raises StoreError. What it was told is then still in `reply`, and is
    written at the next chance that the store has.
    """

    def __init__(
        self, database: Database, clock: Callable[[], float], chat_id: int, start: ReplyStart
    ) -> None:
        self.reply = Reply(start)
        self.message = StoredMessage(database.new_id(), "assistant", "", reply=self.reply)
        self._database = database
        self._clock = clock
        self._chat_id = chat_id
        self._asked = self._flushed = clock()
        self._pieces = 0
        self._rounds = 0
        self._knobs = 0
        self._over = False

    def started(self, event: Started) -> None:
        self.reply.seed = event.seed
        self.reply.prompt_tokens = event.prompt_tokens
        self.reply.cached_tokens = event.cached_tokens
        self.reply.dropped_turns = event.dropped_turns

    def knob(self, event: KnobSet) -> None:
        self.reply.timeline.append(event)

    def round(self, event: Round) -> None:
        self.reply.rounds.append(event)
        self.message.content += event.text
        if self.reply.first_token_s is None:
            self.reply.first_token_s = self._clock() - self._asked
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Flush the first token at once, and later ones once they are FLUSH_EVERY_S old.

        `round` does it; for rounds that come slowly, a timer should too.
        """
        if self._pieces == 0 or self._clock() - self._flushed >= FLUSH_EVERY_S:
            self.flush()

    def finished(self, event: Finished) -> None:
        self.reply.finish = event
        self.message.content += event.text
        self._end()

    def failed(self, event: Failed) -> None:
        self.interrupted(event.message)

    def interrupted(self, reason: str = "") -> None:
        """The engine is gone or gave up; what there is stays, marked as unfinished."""
        self.reply.failure = reason
        self._end()

    def _end(self) -> None:
        self._over = True
        self.flush()

    def flush(self) -> None:
        if not self.reply.rounds:
            return
        statements = [] if self._pieces else [*self._head()]
        rounds = self.reply.rounds[self._rounds :]
        timeline = self.reply.timeline[self._knobs :]
        if rounds or timeline:
            statements.append(self._piece(rounds, timeline))
        if self._over:
            statements += self._conclusion()
        # Counted before they are on disk: what is handed over is the database's to keep.
        self._pieces += 1
        self._rounds += len(rounds)
        self._knobs += len(timeline)
        self._flushed = self._clock()
        self._database.put(*statements)

    def _head(self) -> tuple[Statement, ...]:
        reply, now = self.reply, time.time()
        return (
            (
                "INSERT INTO messages (id, chat, role, content, created) VALUES (?, ?, ?, '', ?)",
                (self.message.id, self._chat_id, "assistant", self.message.created),
            ),
            (
                "INSERT INTO replies (message, start, seed, prompt_tokens, cached_tokens, "
                "dropped_turns, first_token_s) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    self.message.id,
                    _packed(_complete(reply.start)),
                    reply.seed,
                    reply.prompt_tokens,
                    reply.cached_tokens,
                    reply.dropped_turns,
                    reply.first_token_s,
                ),
            ),
            touch(self._chat_id, now),
        )

    def _piece(self, rounds: list[Round], timeline: list[KnobSet]) -> Statement:
        return (
            "INSERT INTO pieces (message, number, rounds, timeline) VALUES (?, ?, ?, ?)",
            (
                self.message.id,
                self._pieces,
                _packed(rounds),
                _packed([_complete(setting) for setting in timeline]),
            ),
        )

    def _conclusion(self) -> tuple[Statement, ...]:
        finish = self.reply.finish
        return (
            (
                "UPDATE messages SET content = ? WHERE id = ?",
                (encodable(self.message.content), self.message.id),
            ),
            (
                "UPDATE replies SET finish = ?, failure = ? WHERE message = ?",
                (
                    None if finish is None else _packed(finish),
                    encodable(self.reply.failure),
                    self.message.id,
                ),
            ),
            touch(self._chat_id, time.time()),
        )


def touch(chat_id: int, now: float) -> Statement:
    return "UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id)


def read_replies(connection: sqlite3.Connection, chosen: str, *values: object) -> dict[int, Reply]:
    """The replies of the messages that `chosen`, a condition in SQL, is true of, by message id.

    Raises sqlite3.Error, and msgspec.MsgspecError where the file holds what no release wrote.
    """
    rows = connection.execute(
        "SELECT message, start, seed, prompt_tokens, cached_tokens, dropped_turns, first_token_s, "
        f"finish, failure FROM replies JOIN messages ON messages.id = message WHERE {chosen}",
        values,
    )
    replies = {
        message: Reply(
            start=_decode_start(start),
            seed=seed,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            dropped_turns=dropped_turns,
            first_token_s=first_token_s,
            finish=None if finish is None else _decode_finish(finish),
            failure=failure,
        )
        for (
            message,
            start,
            seed,
            prompt_tokens,
            cached_tokens,
            dropped_turns,
            first_token_s,
            finish,
            failure,
        ) in rows
    }
    pieces = connection.execute(
        "SELECT message, rounds, timeline FROM pieces JOIN messages ON messages.id = message "
        f"WHERE {chosen} ORDER BY message, number",
        values,
    )
    for message, rounds, timeline in pieces:
        replies[message].rounds.extend(_decode_rounds(rounds))
        replies[message].timeline.extend(_decode_timeline(timeline))
    return replies


def _complete(part: Any) -> Any:
    """`part` with every field, those at their default too, which a later release may change."""
    if isinstance(part, msgspec.Struct):
        return {name: _complete(getattr(part, name)) for name in part.__struct_fields__}
    return part


def _packed(part: Any) -> bytes:
    try:
        return _encode(part)
    except UnicodeEncodeError:
        return _encode(_mended(msgspec.to_builtins(part)))


def _mended(part: Any) -> Any:
    if isinstance(part, str):
        return encodable(part)
    if isinstance(part, dict):
        return {_mended(key): _mended(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_mended(value) for value in part]
    return part
