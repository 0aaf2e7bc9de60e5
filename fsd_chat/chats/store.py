"""Where chats are kept: a message from when it is sent, a reply from its first token."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from fsd_chat.chats.conversation import (
    Chat,
    ChatSummary,
    Conversation,
    ReplyStart,
    StoredMessage,
)
from fsd_chat.chats.database import Database
from fsd_chat.chats.database import StoreError as StoreError
from fsd_chat.chats.display import encodable, one_line
from fsd_chat.chats.replies import FLUSH_EVERY_S as FLUSH_EVERY_S
from fsd_chat.chats.replies import ReplyWriter as ReplyWriter
from fsd_chat.chats.replies import read_replies, touch

TITLE_WIDTH = 60
LONGEST_TITLE = 200


class MessageWaits(StoreError):
    """A message could not be written yet; it is in memory and goes to the file at the next chance.

    `message` is what `add_user_message` would have returned.
    """

    def __init__(self, line: str, message: StoredMessage) -> None:
        super().__init__(line)
        self.message = message


class ChatStore:
    """Every chat, in one SQLite file.

    Methods that touch the file raise StoreError with one line for people. What could not be
    written is kept: it is read like all the rest, and written at the next chance.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """path: the file, made if need be; None keeps the chats in memory only."""
        self._database = Database(path)
        self._clock = clock
        # One that cannot be read is told when it is asked for.
        with suppress(StoreError):
            self._settle()

    @property
    def path(self) -> Path | None:
        return self._database.path

    def take_notice(self) -> str | None:
        """Something people should know, once."""
        notice, self._database.notice = self._database.notice, None
        return notice

    def close(self) -> str | None:
        """Returns one line for people if something could not be kept after all."""
        return self._database.close()

    def _settle(self) -> None:
        """Give the replies that a crash cut short their text, so that a search finds them."""
        with self._reading() as connection:
            replies = read_replies(connection, "role = 'assistant' AND content = ''")
        for message_id, reply in replies.items():
            if reply.text:
                self._database.later(
                    (
                        "UPDATE messages SET content = ? WHERE id = ? AND content = ''",
                        (reply.text, message_id),
                    )
                )

    # --- chats ------------------------------------------------------------------------------

    def create_chat(self, pair: str, system: str = "") -> Chat:
        """A new chat, which is in the file from its first message on."""
        now = time.time()
        chat = Chat(self._database.new_id(), "", encodable(pair), encodable(system), now, now)
        self._database.later(
            (
                "INSERT INTO chats (id, title, pair, system, created, updated) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (chat.id, chat.title, chat.pair, chat.system, now, now),
            )
        )
        return chat

    def chats(self, search: str = "", limit: int = 200) -> list[ChatSummary]:
        """Chats that have a message, the latest first; `search` looks into titles and messages."""
        pattern = f"%{_literal(encodable(search))}%"
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT chats.id, chats.title, chats.updated, COUNT(messages.id) FROM chats "
                "JOIN messages ON messages.chat = chats.id AND NOT messages.superseded "
                "WHERE chats.title LIKE ?1 ESCAPE '\\' OR EXISTS (SELECT 1 FROM messages AS found "
                "WHERE found.chat = chats.id AND NOT found.superseded "
                "AND found.content LIKE ?1 ESCAPE '\\') "
                "GROUP BY chats.id ORDER BY chats.updated DESC, chats.id DESC LIMIT ?2",
                (pattern, limit),
            )
            return [ChatSummary(*row) for row in rows]

    def open(self, chat_id: int) -> Conversation:
        with self._reading() as connection:
            row = connection.execute(
                "SELECT id, title, pair, system, created, updated FROM chats WHERE id = ?",
                (chat_id,),
            ).fetchone()
            if row is None:
                raise StoreError(f"there is no chat {chat_id} in the history {self.path}")
            messages = connection.execute(
                "SELECT id, role, content, created FROM messages "
                "WHERE chat = ? AND NOT superseded ORDER BY id",
                (chat_id,),
            )
            found = [StoredMessage(*values) for values in messages]
            replies = read_replies(connection, "chat = ? AND NOT superseded", chat_id)
        for message in found:
            message.reply = replies.get(message.id)
            if message.reply is not None and message.reply.finish is None:
                message.content = message.reply.text
        return Conversation(Chat(*row), found)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database.reading() as connection:
                yield connection
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"the history {self.path} holds what this release cannot read: {error}"
            ) from error

    def rename(self, chat_id: int, title: str) -> None:
        """An empty title lets the next message give one."""
        title = one_line(title, LONGEST_TITLE)
        self._database.put(("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id)))

    def set_system(self, chat_id: int, system: str) -> None:
        self._database.put(
            ("UPDATE chats SET system = ? WHERE id = ?", (encodable(system), chat_id))
        )

    def delete(self, chat_id: int) -> None:
        self._database.put(("DELETE FROM chats WHERE id = ?", (chat_id,)))

    # --- messages ---------------------------------------------------------------------------

    def add_user_message(self, chat_id: int, content: str) -> StoredMessage:
        """On disk when this returns; the first line of the first one is the chat's title.

        Raises MessageWaits when it could not be written.
        """
        message = StoredMessage(self._database.new_id(), "user", encodable(content))
        try:
            self._database.put(
                (
                    "INSERT INTO messages (id, chat, role, content, created) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (message.id, chat_id, message.role, message.content, message.created),
                ),
                (
                    "UPDATE chats SET title = ? WHERE id = ? AND title = ''",
                    (title_of(message.content), chat_id),
                ),
                touch(chat_id, message.created),
            )
        except StoreError as error:
            raise MessageWaits(str(error), message) from error
        return message

    def supersede_from(self, chat_id: int, message_id: int) -> None:
        """Take `message_id` and all after it out of the conversation; the file keeps them."""
        self._database.put(
            (
                "UPDATE messages SET superseded = 1 WHERE chat = ? AND id >= ?",
                (chat_id, message_id),
            )
        )

    def begin_reply(self, chat_id: int, start: ReplyStart) -> ReplyWriter:
        """A writer whose reply is in the file from its first token on."""
        return ReplyWriter(self._database, self._clock, chat_id, start)


def title_of(content: str) -> str:
    """The first line that has anything on it, short enough for a list."""
    lines = (line for line in content.splitlines() if line.strip())
    return one_line(next(lines, ""), TITLE_WIDTH)


def _literal(search: str) -> str:
    """`search` with nothing in it that LIKE would take for a wildcard."""
    for special in "\\%_":
        search = search.replace(special, "\\" + special)
    return search
