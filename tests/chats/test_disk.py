"""Files that vanish, disks that are full, folders that may not be written: told, nothing lost."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chats.samples import FINISHED, ROUNDS, START, Clock

from fsd_chat.chats.store import ChatStore, MessageWaits, StoreError
from fsd_chat.engine.messages import Finished, Round


def on_disk(path: Path | None, chat_id: int) -> list[str]:
    """What another process would find."""
    store = ChatStore(path)
    contents = [message.content for message in store.open(chat_id).messages]
    store.close()
    return contents


def files_of(store: ChatStore) -> list[Path]:
    assert store.path is not None
    return list(store.path.parent.iterdir())


def sound(store: ChatStore) -> bool:
    with sqlite3.connect(store.path or "") as raw:
        return raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@contextmanager
def full(store: ChatStore) -> Iterator[None]:
    connection = store._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        connection.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def no_file_may_grow(store: ChatStore) -> Iterator[None]:
    """The operating system's own refusal, at what the largest file has now."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in files_of(store))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def read_only(store: ChatStore) -> Iterator[None]:
    """Rights would not keep root from writing; this is what SQLite makes of missing rights."""
    connection = store._database._connection
    connection.execute("PRAGMA query_only = ON")
    try:
        yield
    finally:
        connection.execute("PRAGMA query_only = OFF")


@contextmanager
def written_by_another(store: ChatStore) -> Iterator[None]:
    other = sqlite3.connect(store.path or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


LONG = Round(request=1, index=2, tokens=(), text="x" * 200_000)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (full, "database or disk is full"),
        (no_file_may_grow, "database or disk is full|disk I/O error"),
        (read_only, "attempt to write a readonly database"),
        (written_by_another, "database is locked"),
    ],
)
class TestWhatCannotBeWritten:
    def test_a_reply_is_told_in_one_line_and_written_later(
        self, store: ChatStore, clock: Clock, trouble: object, reason: str
    ) -> None:
        chat = store.create_chat("smol")
        store.add_user_message(chat.id, "question")
        writer = store.begin_reply(chat.id, START)
        writer.round(ROUNDS[0])
        with trouble(store):  # type: ignore[operator]
            clock.now += 1
            with pytest.raises(StoreError, match=f"cannot be written: ({reason})") as error:
                writer.round(LONG)
            assert "\n" not in str(error.value)
            assert str(store.path) in str(error.value)
            writer.round(ROUNDS[1])
            with pytest.raises(StoreError):
                writer.finished(FINISHED)
            whole = "Hello" + LONG.text + " world"
            assert writer.message.content == writer.reply.text == whole
        # A later message takes along what is waiting.
        store.add_user_message(chat.id, "thanks")
        assert on_disk(store.path, chat.id) == ["question", whole, "thanks"]
        reply = ChatStore(store.path).open(chat.id).messages[1].reply
        assert reply is not None
        assert tuple(reply.rounds) == (ROUNDS[0], LONG, ROUNDS[1])
        assert reply.finish == FINISHED

    def test_a_whole_chat_is_kept_in_memory_until_it_can_be_written(
        self, store: ChatStore, written: int, trouble: object, reason: str
    ) -> None:
        with trouble(store):  # type: ignore[operator]
            chat = store.create_chat("smol", "system")
            with pytest.raises(MessageWaits, match=reason) as error:
                store.add_user_message(chat.id, "first " + "y" * 200_000)
            message = error.value.message
            assert message.content.startswith("first")
            writer = store.begin_reply(chat.id, START)
            with pytest.raises(StoreError):
                writer.round(ROUNDS[0])
            with pytest.raises(StoreError):
                writer.finished(Finished(request=1, reason="end"))
            with pytest.raises(StoreError):
                store.supersede_from(chat.id, writer.message.id)
            again = store.begin_reply(chat.id, START)
            with pytest.raises(StoreError):
                again.round(ROUNDS[1])
            # The window itself reads it like anything else.
            assert [one.id for one in store.chats()] == [chat.id, written]
            seen = store.open(chat.id).messages
            assert [one.id for one in seen] == [message.id, again.message.id]
            assert store.open(written).messages[1].content == "Hello world"
        assert store.close() is None
        first, answer = on_disk(store.path, chat.id)
        assert (first, answer) == (message.content, " wor")


def test_what_is_lost_at_the_end_is_said(store: ChatStore, tmp_path: Path) -> None:
    lost = ChatStore(tmp_path / "other.db")
    chat = lost.create_chat("smol")
    lost._database._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError):
        lost.add_user_message(chat.id, "hello")
    line = lost.close()
    assert line is not None
    assert "readonly" in line
    assert "lost" in line


def test_waiting_for_another_window_does_not_freeze_the_screen(store: ChatStore) -> None:
    chat = store.create_chat("smol")
    store.add_user_message(chat.id, "hello")
    with written_by_another(store):
        start = time.perf_counter()
        with pytest.raises(StoreError):
            store.add_user_message(chat.id, "more")
        assert time.perf_counter() - start < 1


def test_a_chat_deleted_in_another_window_is_told_and_is_in_nobodys_way(
    store: ChatStore, written: int
) -> None:
    other = ChatStore(store.path)
    other.delete(written)
    with pytest.raises(StoreError, match="no longer has this chat"):
        store.add_user_message(written, "hello?")
    chat = store.create_chat("smol")
    store.add_user_message(chat.id, "another")
    assert on_disk(store.path, chat.id) == ["another"]


# --- files that vanish ------------------------------------------------------------------------


def test_a_file_deleted_while_in_use_is_written_again_in_full(
    store: ChatStore, written: int
) -> None:
    for file in files_of(store):
        file.unlink()
    store.add_user_message(written, "still there?")
    assert "was deleted while in use" in (store.take_notice() or "")
    assert store.take_notice() is None
    expected = ["Say hello\nplease", "Hello world", "still there?"]
    assert on_disk(store.path, written) == expected
    reply = ChatStore(store.path).open(written).messages[1].reply
    assert reply is not None
    assert tuple(reply.rounds) == ROUNDS


@pytest.mark.parametrize("with_journal", [True, False])
def test_a_file_deleted_in_the_middle_of_a_reply_loses_no_token(
    store: ChatStore, clock: Clock, with_journal: bool
) -> None:
    chat = store.create_chat("smol")
    writer = store.begin_reply(chat.id, START)
    writer.round(ROUNDS[0])
    for file in files_of(store):
        if with_journal or file == store.path:
            file.unlink()
    clock.now += 1
    writer.round(ROUNDS[1])
    writer.finished(FINISHED)
    assert on_disk(store.path, chat.id) == ["Hello world"]
    assert sound(store)


def test_a_moved_folder_leaves_the_old_file_as_it_was(store: ChatStore, written: int) -> None:
    assert store.path is not None
    elsewhere = store.path.parent.with_name("elsewhere")
    store.path.parent.rename(elsewhere)
    store.add_user_message(written, "here")
    assert on_disk(store.path, written)[-1] == "here"
    assert on_disk(elsewhere / "chats.db", written) == ["Say hello\nplease", "Hello world"]


def test_another_history_in_the_files_place_keeps_what_it_has_and_gets_the_rest(
    store: ChatStore, written: int
) -> None:
    for file in files_of(store):
        file.unlink()
    newcomer = ChatStore(store.path)
    theirs = newcomer.create_chat("smol")
    newcomer.add_user_message(theirs.id, "I was here first")
    store.add_user_message(written, "still there?")
    assert "replaced while in use" in (store.take_notice() or "")
    newcomer.add_user_message(theirs.id, "and still am")
    assert newcomer.take_notice() is None
    assert on_disk(store.path, theirs.id) == ["I was here first", "and still am"]
    assert on_disk(store.path, written) == ["Say hello\nplease", "Hello world", "still there?"]


@pytest.mark.parametrize("with_journal", [True, False])
def test_two_windows_lose_nothing_when_their_file_is_deleted(
    store: ChatStore, written: int, with_journal: bool
) -> None:
    other = ChatStore(store.path)
    theirs = other.create_chat("smol")
    other.add_user_message(theirs.id, "theirs")
    for file in files_of(store):
        if with_journal or file == store.path:
            file.unlink()
    for number in range(3):
        store.add_user_message(written, f"ours {number}")
        other.add_user_message(theirs.id, f"theirs {number}")
    assert on_disk(store.path, written)[2:] == ["ours 0", "ours 1", "ours 2"]
    assert on_disk(store.path, theirs.id) == ["theirs", "theirs 0", "theirs 1", "theirs 2"]
    assert sound(store)


def test_a_folder_that_vanished_for_good_is_told_and_nothing_is_lost_from_memory(
    store: ChatStore, written: int
) -> None:
    assert store.path is not None
    folder = store.path.parent
    shutil.rmtree(folder)
    folder.write_text("in the way")
    for _ in range(2):
        with pytest.raises(StoreError, match="was deleted and cannot be written again") as error:
            store.add_user_message(written, "hello?")
    assert "\n" not in str(error.value)
    assert [one.content for one in store.open(written).messages][1:] == [
        "Hello world",
        "hello?",
        "hello?",
    ]
    folder.unlink()
    store.add_user_message(written, "at last")
    assert on_disk(store.path, written)[1:] == ["Hello world", "hello?", "hello?", "at last"]
    assert "written again" in (store.take_notice() or "")


def test_a_file_that_cannot_be_asked_for_is_not_taken_for_deleted(
    store: ChatStore, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    store.add_user_message(written, "fine")
    monkeypatch.undo()
    assert store.take_notice() is None
    assert on_disk(store.path, written)[-1] == "fine"
