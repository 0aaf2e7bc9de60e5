"""The history file's shape, as numbered steps. Steps are only ever added at the end."""

from __future__ import annotations

import sqlite3

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE chats (
            id INTEGER PRIMARY KEY,
            title TEXT NOT NULL,
            pair TEXT NOT NULL,
            system TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL
        )
        """,
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY,
            chat INTEGER NOT NULL REFERENCES chats ON DELETE CASCADE,
            role TEXT NOT NULL,
            content TEXT NOT NULL,
            created REAL NOT NULL,
            superseded INTEGER NOT NULL DEFAULT 0
        )
        """,
        "CREATE INDEX messages_of_chat ON messages (chat, id)",
        """
        CREATE TABLE replies (
            message INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
            start BLOB NOT NULL,
            seed INTEGER,
            prompt_tokens INTEGER,
            cached_tokens INTEGER,
            first_token_s REAL,
            finish BLOB
        )
        """,
        """
        CREATE TABLE pieces (
            id INTEGER PRIMARY KEY,
            message INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
            rounds BLOB NOT NULL,
            timeline BLOB NOT NULL
        )
        """,
        "CREATE INDEX pieces_of_message ON pieces (message, id)",
    ),
    (
        # Pieces are counted within their reply, so that no id depends on what else is in the file
        # and two histories can be joined.
        """
        CREATE TABLE numbered (
            message INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
            number INTEGER NOT NULL,
            rounds BLOB NOT NULL,
            timeline BLOB NOT NULL,
            UNIQUE (message, number)
        )
        """,
        """
        INSERT INTO numbered
        SELECT message, ROW_NUMBER() OVER (PARTITION BY message ORDER BY id) - 1, rounds, timeline
        FROM pieces
        """,
        "DROP TABLE pieces",
        "ALTER TABLE numbered RENAME TO pieces",
        "ALTER TABLE replies ADD COLUMN dropped_turns INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE replies ADD COLUMN failure TEXT NOT NULL DEFAULT ''",
        # Replies whose text is in their pieces only: being written, or cut short by a crash.
        "CREATE INDEX unsettled ON messages (id) WHERE role = 'assistant' AND content = ''",
    ),
)
TABLES = ("chats", "messages", "replies", "pieces")
"""Those that a row refers to come before its own."""


class NewerSchema(Exception):
    """The file was written by a later release."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest shape, all steps or none.

    Raises NewerSchema, and sqlite3.Error from SQLite.
    """
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another window may have done it while this one waited for its turn.
        version = _version(connection)
        for step in MIGRATIONS[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise NewerSchema(
            f"it was written by a newer release (version {version}, this one knows "
            f"{len(MIGRATIONS)}); update fsd-chat"
        )
    return version
