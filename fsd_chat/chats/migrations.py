"""The history file's shape, as numbered steps. Steps are only ever added at the end."""

from __future__ import annotations

import sqlite3

MIGRATIONS = (
    """
    CREATE TABLE chats (
        id INTEGER PRIMARY KEY,
        title TEXT NOT NULL,
        pair TEXT NOT NULL,
        system TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL
    );
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        chat INTEGER NOT NULL REFERENCES chats ON DELETE CASCADE,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        created REAL NOT NULL,
        superseded INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX messages_of_chat ON messages (chat, id);
    CREATE TABLE replies (
        message INTEGER PRIMARY KEY REFERENCES messages ON DELETE CASCADE,
        start BLOB NOT NULL,
        seed INTEGER,
        prompt_tokens INTEGER,
        cached_tokens INTEGER,
        first_token_s REAL,
        finish BLOB
    );
    CREATE TABLE pieces (
        id INTEGER PRIMARY KEY,
        message INTEGER NOT NULL REFERENCES messages ON DELETE CASCADE,
        rounds BLOB NOT NULL,
        timeline BLOB NOT NULL
    );
    CREATE INDEX pieces_of_message ON pieces (message, id);
    """,
)


class NewerSchema(Exception):
    """The file was written by a later release."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest shape, each step in one transaction. Raises NewerSchema."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise NewerSchema(
            f"it was written by a newer release (version {version}, this one knows "
            f"{len(MIGRATIONS)})"
        )
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")
