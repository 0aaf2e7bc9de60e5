"""The SQLite file behind the store.

Nothing that is handed over is lost while the process lives: what cannot be written waits in memory
and is written at the next chance, and a file that somebody deletes is written again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsd_chat.chats.migrations import TABLES, NewerSchema, migrate

BUSY_S = 0.1
"""How long to wait for another window that is writing; the screen stands still meanwhile."""
BUSY_AT_CLOSE_MS = 2000

Statement = tuple[str, tuple[object, ...]]


class StoreError(Exception):
    """The history cannot be read or written; the message is one line for people."""


class Database:
    """One writer's connection."""

    def __init__(self, path: Path | None) -> None:
        """path: the file; None keeps everything in memory. Raises StoreError."""
        self.path = path
        self.notice: str | None = None
        """Something that people should know; whoever tells it to them clears it."""
        self._waiting: list[tuple[Statement, ...]] = []
        self._closed = False
        self._adrift = False
        """The file is gone and cannot be made again yet; what it held is in memory."""
        self._identity: tuple[int, int] | None = None
        self._connection = self._open()
        self._identity = self._stat()
        self._last_id = self._highest_id()

    def _open(self) -> sqlite3.Connection:
        connection = None
        try:
            if self.path is None:
                connection = sqlite3.connect(":memory:", isolation_level=None)
            else:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_S)
                # Where there are no such rights, or the file is another user's, SQLite decides.
                with contextlib.suppress(OSError):
                    self.path.chmod(0o600)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            migrate(connection)
        except (sqlite3.Error, OSError, NewerSchema) as error:
            if connection is not None:
                connection.close()
            raise StoreError(
                f"the history {self.path} cannot be opened: {_reason(error)}"
            ) from error
        return connection

    def _stat(self) -> tuple[int, int] | None:
        """Which file has the path now; None if there is none."""
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            # It cannot be told. If it matters, SQLite will say so.
            return self._identity
        return found.st_dev, found.st_ino

    def _highest_id(self) -> int:
        with self.reading() as connection:
            row = connection.execute(
                "SELECT MAX(COALESCE((SELECT MAX(id) FROM chats), 0), "
                "COALESCE((SELECT MAX(id) FROM messages), 0))"
            ).fetchone()
        highest: int = row[0]
        return highest

    def new_id(self) -> int:
        """Larger than every id before it, and another one in every window and every file.

        Microseconds since the epoch: an id is needed before anything can be written.
        """
        self._last_id = max(self._last_id + 1, time.time_ns() // 1000)
        return self._last_id

    # --- writing ----------------------------------------------------------------------------

    def later(self, *statements: Statement) -> None:
        """Write `statements` together with the next ones."""
        self._waiting.append(statements)

    def put(self, *statements: Statement) -> None:
        """Write `statements`, all or none of them, after whatever is still waiting.

        Raises StoreError, after which they wait in memory for the next call.
        """
        if statements:
            self._waiting.append(statements)
        try:
            refused = self._write_waiting()
        except StoreError as error:
            raise StoreError(f"{error}; it is kept in memory and tried again") from error
        if refused is not None:
            raise StoreError(
                f"the history {self.path} no longer has this chat ({refused}); "
                "what is said now is not kept"
            )

    def _write_waiting(self) -> sqlite3.IntegrityError | None:
        if not self._waiting:
            return None
        self._bring_back()
        try:
            with _transaction(self._connection):
                refused = _apply(self._connection, self._waiting)
        except sqlite3.Error as error:
            raise StoreError(
                f"the history {self.path} cannot be written: {_reason(error)}"
            ) from error
        self._waiting.clear()
        return refused

    def _bring_back(self) -> None:
        """Write the file again if it is gone; if another took its place, add to that one."""
        if self.path is None:
            return
        found = self._stat()
        if found == self._identity and not self._adrift:
            return
        try:
            content = self._let_go()
            if found is None:
                for journal in ("-wal", "-shm"):
                    self.path.with_name(self.path.name + journal).unlink(missing_ok=True)
            fresh = self._open_with(content)
        except (sqlite3.Error, OSError, StoreError) as error:
            raise StoreError(
                f"the history {self.path} was deleted and cannot be written again: {_reason(error)}"
            ) from error
        content.close()
        self._connection, self._identity, self._adrift = fresh, self._stat(), False
        what = "deleted while in use; it has been written again"
        if found is not None:
            what = "replaced while in use; what this window knows has been added to it"
        self.notice = f"The history {self.path} was {what}."

    def _open_with(self, content: sqlite3.Connection) -> sqlite3.Connection:
        fresh = self._open()
        try:
            with _transaction(fresh):
                _copy(content, fresh)
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _let_go(self) -> sqlite3.Connection:
        """What the open file holds, in memory.

        The connection to the file has to end before there can be another one of this name: they
        would share one journal.
        """
        if not self._adrift:
            content = sqlite3.connect(":memory:", isolation_level=None)
            self._connection.backup(content)
            self._connection.close()
            self._connection, self._adrift = content, True
        return self._connection

    # --- reading ----------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What has been written, and what is waiting to be. Raises StoreError."""
        try:
            if not self._waiting:
                yield self._connection
                return
            with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as both:
                self._connection.backup(both)
                both.execute("PRAGMA foreign_keys = ON")
                _apply(both, self._waiting)
                yield both
        except sqlite3.Error as error:
            raise StoreError(f"the history {self.path} cannot be read: {_reason(error)}") from error

    def close(self) -> str | None:
        """Returns one line for people if something is lost with the process."""
        if self._closed:
            return None
        self._closed = True
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_AT_CLOSE_MS}")
            self._write_waiting()
        except StoreError as error:
            return f"{error}; what was said since then is lost"
        finally:
            self._connection.close()
        return None


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some errors (a full disk is one) have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(
    connection: sqlite3.Connection, batches: list[tuple[Statement, ...]]
) -> sqlite3.IntegrityError | None:
    """Run the batches; one that the data contradict is left out, or it would be in the way of all
    that follow. Returns why the last such one was left out."""
    refused = None
    for batch in batches:
        connection.execute("SAVEPOINT batch")
        try:
            for statement, values in batch:
                connection.execute(statement, values)
        except sqlite3.IntegrityError as error:
            connection.execute("ROLLBACK TO batch")
            refused = error
        connection.execute("RELEASE batch")
    return refused


def _copy(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    for table in TABLES:
        rows = source.execute(f"SELECT * FROM {table}")
        marks = ", ".join("?" * len(rows.description))
        target.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error)
