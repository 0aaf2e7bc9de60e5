"""Where chats are kept: a message from when it is sent, a reply from its first token."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from fsd_chat.chats.conversation import (
    Chat,
    ChatSummary,
    Conversation,
    Reply,
    ReplyStart,
    StoredMessage,
)
from fsd_chat.chats.database import Database
from fsd_chat.chats.database import StoreError as StoreError
from fsd_chat.chats.display import one_line
from fsd_chat.engine.messages import Finished, KnobSet, Role, Round, Started

TITLE_WIDTH = 60
FLUSH_EVERY_S = 0.25
"""At most so much of a reply is lost in a crash."""

_encode = msgspec.msgpack.Encoder().encode
_decode_start = msgspec.msgpack.Decoder(ReplyStart).decode
_decode_finish = msgspec.msgpack.Decoder(Finished).decode
_decode_rounds = msgspec.msgpack.Decoder(list[Round]).decode
_decode_timeline = msgspec.msgpack.Decoder(list[KnobSet]).decode


class ChatStore:
    """Every chat, in one SQLite file. All methods raise StoreError with one line for people."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """path: the file, made if need be; None keeps the chats in memory only."""
        self._database = Database(path)
        self._clock = clock

    @property
    def path(self) -> Path | None:
        return self._database.path

    def take_notice(self) -> str | None:
        """Something people should know, once."""
        if not self._database.rewritten:
            return None
        self._database.rewritten = False
        return f"The history {self.path} was deleted while in use; it has been written again."

    def close(self) -> None:
        self._database.close()

    def create_chat(self, pair: str, system: str = "") -> Chat:
        now = time.time()
        with self._database.transaction() as connection:
            row = connection.execute(
                "INSERT INTO chats (title, pair, system, created, updated) VALUES (?, ?, ?, ?, ?)",
                ("", pair, system, now, now),
            )
        return Chat(cast(int, row.lastrowid), "", pair, system, now, now)

    def chats(self, search: str = "", limit: int = 200) -> list[ChatSummary]:
        """Chats that have a message, the latest first; `search` looks into titles and messages."""
        pattern = f"%{_literal(search)}%"
        rows = self._database.read(
            "SELECT chats.id, chats.title, chats.updated, COUNT(messages.id) FROM chats "
            "JOIN messages ON messages.chat = chats.id AND NOT messages.superseded "
            "WHERE chats.title LIKE ?1 ESCAPE '\\' OR EXISTS (SELECT 1 FROM messages AS found "
            "WHERE found.chat = chats.id AND found.content LIKE ?1 ESCAPE '\\') "
            "GROUP BY chats.id ORDER BY chats.updated DESC, chats.id DESC LIMIT ?2",
            pattern,
            limit,
        )
        return [ChatSummary(*cast(tuple[int, str, float, int], row)) for row in rows]

    def open(self, chat_id: int) -> Conversation:
        rows = self._database.read(
            "SELECT id, title, pair, system, created, updated FROM chats WHERE id = ?", chat_id
        )
        if not rows:
            raise StoreError(f"there is no chat {chat_id} in the history {self.path}")
        chat = Chat(*cast(tuple[int, str, str, str, float, float], rows[0]))
        messages = self._database.read(
            "SELECT id, role, content, created FROM messages "
            "WHERE chat = ? AND NOT superseded ORDER BY id",
            chat_id,
        )
        found = [StoredMessage(*cast(tuple[int, Role, str, float], row)) for row in messages]
        for message in found:
            if message.role == "assistant":
                message.reply = self._reply(message.id)
                if message.reply is not None and message.reply.finish is None:
                    message.content = message.reply.text
        return Conversation(chat, found)

    def _reply(self, message_id: int) -> Reply | None:
        rows = self._database.read(
            "SELECT start, seed, prompt_tokens, cached_tokens, first_token_s, finish "
            "FROM replies WHERE message = ?",
            message_id,
        )
        if not rows:
            return None
        start, seed, prompt_tokens, cached_tokens, first_token_s, finish = rows[0]
        reply = Reply(
            start=_decode_start(cast(bytes, start)),
            seed=cast(int | None, seed),
            prompt_tokens=cast(int | None, prompt_tokens),
            cached_tokens=cast(int | None, cached_tokens),
            first_token_s=cast(float | None, first_token_s),
            finish=_decode_finish(cast(bytes, finish)) if finish else None,
        )
        pieces = self._database.read(
            "SELECT rounds, timeline FROM pieces WHERE message = ? ORDER BY id", message_id
        )
        for rounds, timeline in pieces:
            reply.rounds.extend(_decode_rounds(cast(bytes, rounds)))
            reply.timeline.extend(_decode_timeline(cast(bytes, timeline)))
        return reply

    def rename(self, chat_id: int, title: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id))

    def set_system(self, chat_id: int, system: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("UPDATE chats SET system = ? WHERE id = ?", (system, chat_id))

    def delete(self, chat_id: int) -> None:
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM chats WHERE id = ?", (chat_id,))

    def add_user_message(self, chat_id: int, content: str) -> StoredMessage:
        """On disk when this returns. The first one gives the chat its title."""
        content = content.encode("utf-8", "replace").decode("utf-8")
        message = self._add_message(chat_id, "user", content)
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE chats SET title = ? WHERE id = ? AND title = ''",
                (one_line(content, TITLE_WIDTH), chat_id),
            )
        return message

    def _add_message(self, chat_id: int, role: Role, content: str) -> StoredMessage:
        now = time.time()
        with self._database.transaction() as connection:
            row = connection.execute(
                "INSERT INTO messages (chat, role, content, created) VALUES (?, ?, ?, ?)",
                (chat_id, role, content, now),
            )
            connection.execute("UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id))
        return StoredMessage(cast(int, row.lastrowid), role, content, now)

    def supersede_from(self, chat_id: int, message_id: int) -> None:
        """Take `message_id` and all after it out of the conversation; the file keeps them."""
        with self._database.transaction() as connection:
            connection.execute(
                "UPDATE messages SET superseded = 1 WHERE chat = ? AND id >= ?",
                (chat_id, message_id),
            )

    def begin_reply(self, chat_id: int, start: ReplyStart) -> ReplyWriter:
        return ReplyWriter(self._database, self._clock, chat_id, Reply(start))


class ReplyWriter:
    """Keeps one reply while it is written; only what is new is ever written.

    Whatever a method raises, what it was told stays in `reply` and is written at the next chance.
    """

    def __init__(
        self, database: Database, clock: Callable[[], float], chat_id: int, reply: Reply
    ) -> None:
        self.reply = reply
        self.message = StoredMessage(0, "assistant", "", reply=reply)
        """Its id is 0 until the first token is on disk."""
        self._database = database
        self._clock = clock
        self._chat_id = chat_id
        self._asked = self._flushed = clock()
        self._rounds_on_disk = 0
        self._knobs_on_disk = 0

    def started(self, event: Started) -> None:
        self.reply.seed = event.seed
        self.reply.prompt_tokens = event.prompt_tokens
        self.reply.cached_tokens = event.cached_tokens

    def knob(self, event: KnobSet) -> None:
        self.reply.timeline.append(event)

    def round(self, event: Round) -> None:
        self.reply.rounds.append(event)
        self.message.content += event.text
        now = self._clock()
        if self.reply.first_token_s is None:
            self.reply.first_token_s = now - self._asked
        if self.message.id == 0 or now - self._flushed >= FLUSH_EVERY_S:
            self.flush()

    def finished(self, event: Finished) -> None:
        self.reply.finish = event
        self.message.content += event.text
        self.flush()

    def interrupted(self) -> None:
        """The engine is gone; what there is stays, marked as unfinished."""
        self.flush()

    def flush(self) -> None:
        if self.message.id == 0 and not self.reply.rounds:
            return
        rounds = self.reply.rounds[self._rounds_on_disk :]
        timeline = self.reply.timeline[self._knobs_on_disk :]
        with self._database.transaction() as connection:
            message_id = self.message.id
            if message_id == 0:
                row = connection.execute(
                    "INSERT INTO messages (chat, role, content, created) VALUES (?, ?, '', ?)",
                    (self._chat_id, "assistant", self.message.created),
                )
                message_id = cast(int, row.lastrowid)
                connection.execute(
                    "INSERT INTO replies "
                    "(message, start, seed, prompt_tokens, cached_tokens, first_token_s) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        message_id,
                        _encode(self.reply.start),
                        self.reply.seed,
                        self.reply.prompt_tokens,
                        self.reply.cached_tokens,
                        self.reply.first_token_s,
                    ),
                )
            if rounds or timeline:
                connection.execute(
                    "INSERT INTO pieces (message, rounds, timeline) VALUES (?, ?, ?)",
                    (message_id, _encode(rounds), _encode(timeline)),
                )
            if self.reply.finish is not None:
                connection.execute(
                    "UPDATE messages SET content = ? WHERE id = ?",
                    (self.message.content, message_id),
                )
                connection.execute(
                    "UPDATE replies SET finish = ? WHERE message = ?",
                    (_encode(self.reply.finish), message_id),
                )
            connection.execute(
                "UPDATE chats SET updated = ? WHERE id = ?", (time.time(), self._chat_id)
            )
        self.message.id = message_id
        self._rounds_on_disk += len(rounds)
        self._knobs_on_disk += len(timeline)
        self._flushed = self._clock()


def _literal(search: str) -> str:
    """`search` with nothing in it that LIKE would take for a wildcard."""
    for special in "\\%_":
        search = search.replace(special, "\\" + special)
    return search
