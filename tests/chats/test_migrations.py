"""Files of earlier releases are brought up to date; files of later ones are left alone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from chats.samples import FINISHED, ROUNDS, START, TIMELINE

from fsd_chat.chats import migrations
from fsd_chat.chats.migrations import MIGRATIONS, NewerSchema, migrate
from fsd_chat.chats.store import ChatStore, StoreError


def shape(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    return connection.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()


def first_release(path: Path) -> None:
    """A history as the first version of the file had it: one question, one reply in two pieces."""
    raw = sqlite3.connect(path, isolation_level=None)
    for statement in MIGRATIONS[0]:
        raw.execute(statement)
    pack = msgspec.msgpack.encode
    raw.execute("INSERT INTO chats VALUES (1, 'Hi', 'smol', '', 1.5, 2.5)")
    raw.execute("INSERT INTO messages VALUES (1, 1, 'user', 'Hi', 1.5, 0)")
    raw.execute("INSERT INTO messages VALUES (2, 1, 'assistant', 'Hello world', 2.5, 0)")
    raw.execute(
        "INSERT INTO replies VALUES (2, ?, 7, 40, 3, 0.5, ?)", (pack(START), pack(FINISHED))
    )
    for round, setting in zip(ROUNDS, TIMELINE, strict=True):
        raw.execute(
            "INSERT INTO pieces (message, rounds, timeline) VALUES (2, ?, ?)",
            (pack([round]), pack([setting])),
        )
    raw.execute("PRAGMA user_version = 1")
    raw.close()


def test_a_file_of_the_first_release_is_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    first_release(path)
    store = ChatStore(path)
    (chat,) = store.chats()
    reply = store.open(chat.id).messages[1].reply
    assert reply is not None
    assert tuple(reply.rounds) == ROUNDS
    assert tuple(reply.timeline) == TIMELINE
    assert (reply.start, reply.finish, reply.seed) == (START, FINISHED, 7)
    store.add_user_message(chat.id, "and now?")
    store.begin_reply(chat.id, START).round(ROUNDS[0])
    contents = [message.content for message in ChatStore(path).open(chat.id).messages]
    assert contents == ["Hi", "Hello world", "and now?", "Hello"]


@pytest.mark.parametrize("version", range(len(MIGRATIONS)))
def test_every_earlier_version_comes_to_the_shape_of_a_new_file(version: int) -> None:
    new, old = (sqlite3.connect(":memory:", isolation_level=None) for _ in range(2))
    migrate(new)
    for step in MIGRATIONS[:version]:
        for statement in step:
            old.execute(statement)
    old.execute(f"PRAGMA user_version = {version}")
    migrate(old)
    assert shape(old) == shape(new)


def test_a_step_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chats.db"
    first_release(path)
    broken = (*MIGRATIONS, ("DROP TABLE messages", "no SQL at all"))
    monkeypatch.setattr(migrations, "MIGRATIONS", broken)
    with pytest.raises(StoreError, match="cannot be opened"):
        ChatStore(path)
    monkeypatch.undo()
    assert ChatStore(path).open(1).messages[0].content == "Hi"


def test_a_history_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    raw.execute("CREATE TABLE novelty (x)")
    raw.close()
    with pytest.raises(StoreError, match=r"newer release.*update fsd-chat") as error:
        ChatStore(path)
    assert str(path) in str(error.value)
    raw = sqlite3.connect(path)
    assert shape(raw) == [("CREATE TABLE novelty (x)",)]
    with pytest.raises(NewerSchema):
        migrate(raw)


def test_windows_that_start_at_once_agree_on_one_file(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    script = (
        "import sys; from pathlib import Path; from contextlib import suppress\n"
        "from fsd_chat.chats.store import ChatStore, StoreError\n"
        "store = ChatStore(Path(sys.argv[1])); input()\n"
        "for number in range(20):\n"
        "    chat = store.create_chat('p')\n"
        "    with suppress(StoreError): store.add_user_message(chat.id, str(number))\n"
        "sys.exit(store.close())\n"
    )
    windows = [
        subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE)
        for _ in range(3)
    ]
    for window in windows:
        window.communicate(b"\n")
    assert [window.returncode for window in windows] == [0, 0, 0]
    assert len(ChatStore(path).chats()) == 60
