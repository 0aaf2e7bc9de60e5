"""The SQLite file behind the store: opened, watched, and written again if somebody deletes it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsd_chat.chats.migrations import NewerSchema, migrate


class StoreError(Exception):
    """The history cannot be read or written; the message is one line for people."""


class Database:
    """One writer's connection. A file that is deleted while in use is written again in full."""

    def __init__(self, path: Path | None) -> None:
        """path: the file; None keeps everything in memory. Raises StoreError."""
        self.path = path
        self.rewritten = False
        """Set once the file had to be written again; whoever tells people about it clears it."""
        self._connection = self._open()
        self._identity = self._stat()

    def _open(self) -> sqlite3.Connection:
        try:
            if self.path is None:
                connection = sqlite3.connect(":memory:", isolation_level=None)
            else:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                connection = sqlite3.connect(self.path, isolation_level=None, timeout=2)
                self.path.chmod(0o600)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            migrate(connection)
        except (sqlite3.Error, OSError, NewerSchema) as error:
            raise StoreError(
                f"the history {self.path} cannot be opened: {_reason(error)}"
            ) from error
        return connection

    def _stat(self) -> tuple[int, int] | None:
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. Raises StoreError, after which nothing has changed."""
        self._bring_back()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(
                f"the history {self.path} cannot be written: {_reason(error)}"
            ) from error

    def read(self, query: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"the history {self.path} cannot be read: {_reason(error)}") from error

    def _bring_back(self) -> None:
        """The open connection still holds a deleted file's content: copy it to a new file.

        By way of memory, since the old file's journal, if that was left, would be taken for the
        new one's. Until a new file can be made, memory is where the chats are.
        """
        if self.path is None or (self._identity and self._stat() == self._identity):
            return
        try:
            kept = sqlite3.connect(":memory:", isolation_level=None)
            self._connection.backup(kept)
            self._connection.close()
            self._connection, self._identity = kept, None
            for journal in ("-wal", "-shm"):
                self.path.with_name(self.path.name + journal).unlink(missing_ok=True)
            fresh = self._open()
            kept.backup(fresh)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"the history {self.path} was deleted and cannot be written again: {_reason(error)}"
            ) from error
        kept.close()
        self._connection, self._identity = fresh, self._stat()
        self.rewritten = True

    def close(self) -> None:
        self._connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error)
