"""What was said is on disk, whatever happens to the process, the disk or the file."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from chats.samples import FINISHED, ROUNDS, START, TIMELINE, Clock

from fsd_chat.chats.store import FLUSH_EVERY_S, ChatStore, StoreError


def reopened(store: ChatStore) -> ChatStore:
    return ChatStore(store.path)


def test_a_reply_comes_back_as_it_was_written(store: ChatStore, written: int) -> None:
    conversation = reopened(store).open(written)
    question, answer = conversation.messages
    assert (question.role, question.content) == ("user", "Say hello\nplease")
    assert (answer.role, answer.content) == ("assistant", "Hello world")
    reply = answer.reply
    assert reply is not None
    assert reply.start == START
    assert tuple(reply.rounds) == ROUNDS
    assert tuple(reply.timeline) == TIMELINE
    assert reply.finish == FINISHED
    assert (reply.seed, reply.prompt_tokens, reply.cached_tokens) == (2**62, 40, 3)
    assert reply.first_token_s == pytest.approx(0.5)
    assert (reply.text, reply.reasoning) == ("Hello world", "hm")
    assert reply.statistics().fuzzy == 1
    assert conversation.chat.system == "Be brief."


def test_the_first_question_gives_the_chat_its_title(store: ChatStore, written: int) -> None:
    assert store.chats()[0].title == "Say hello"
    store.add_user_message(written, "another")
    assert store.chats()[0].title == "Say hello"
    store.rename(written, "Greetings")
    store.add_user_message(written, "a third")
    assert store.open(written).chat.title == "Greetings"


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("\n  \nsecond line\nthird", "second line"),
        ("x" * 100, "x" * 59 + "…"),
        ("a\x1b[2J\x07b", "a␛[2J␇b"),
        ("\n \n", ""),
    ],
)
def test_a_title_is_the_first_line_that_has_anything_on_it(
    store: ChatStore, content: str, title: str
) -> None:
    chat = store.create_chat("smol")
    store.add_user_message(chat.id, content)
    assert store.chats()[0].title == title


def test_a_chat_without_a_message_leaves_no_trace(store: ChatStore) -> None:
    chat = store.create_chat("smol")
    assert store.open(chat.id).messages == []
    with pytest.raises(StoreError, match="no chat"):
        reopened(store).open(chat.id)


def test_a_message_is_on_disk_when_it_is_sent(store: ChatStore) -> None:
    chat = store.create_chat("smol", system="Be brief.")
    store.add_user_message(chat.id, "hello?")
    conversation = reopened(store).open(chat.id)
    assert conversation.messages[0].content == "hello?"
    assert (conversation.chat.pair, conversation.chat.system) == ("smol", "Be brief.")


def test_a_reply_exists_from_its_first_token(store: ChatStore) -> None:
    chat = store.create_chat("smol")
    store.add_user_message(chat.id, "question")
    writer = store.begin_reply(chat.id, START)
    assert len(reopened(store).open(chat.id).messages) == 1
    writer.round(ROUNDS[0])
    _, message = reopened(store).open(chat.id).messages
    assert message.id == writer.message.id
    assert message.content == "Hello"
    assert message.reply is not None
    assert message.reply.finish is None


def test_rounds_reach_the_disk_at_most_every_quarter_second(store: ChatStore, clock: Clock) -> None:
    chat = store.create_chat("smol")
    writer = store.begin_reply(chat.id, START)
    writer.round(ROUNDS[0])
    writer.round(ROUNDS[1])
    assert reopened(store).open(chat.id).messages[0].content == "Hello"
    clock.now += FLUSH_EVERY_S
    writer.round(ROUNDS[1])
    assert reopened(store).open(chat.id).messages[0].content == "Hello wor wor"


def test_a_killed_process_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    script = (
        "import os, signal, sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from samples import ROUNDS, START\n"
        "from fsd_chat.chats.store import ChatStore\n"
        "store = ChatStore(Path(sys.argv[1])); chat = store.create_chat('smol')\n"
        "store.add_user_message(chat.id, 'question')\n"
        "writer = store.begin_reply(chat.id, START); writer.round(ROUNDS[0])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", script, str(path), here, *sys.path], check=False)
    assert done.returncode < 0
    store = ChatStore(path)
    assert [chat.title for chat in store.chats("hell")] == ["question"]
    question, answer = store.open(store.chats()[0].id).messages
    assert (question.content, answer.content) == ("question", "Hello")


def test_regenerating_takes_the_old_reply_out_and_the_file_keeps_it(
    store: ChatStore, written: int
) -> None:
    answer = store.open(written).messages[-1]
    store.supersede_from(written, answer.id)
    assert [message.role for message in store.open(written).messages] == ["user"]
    raw = sqlite3.connect(store.path or "")
    assert raw.execute("SELECT COUNT(*) FROM replies").fetchone() == (1,)


def test_chats_are_listed_latest_first_and_found_by_what_was_said(
    store: ChatStore, written: int
) -> None:
    other = store.create_chat("smol")
    store.add_user_message(other.id, "100% cotton_wool")
    empty = store.create_chat("smol")
    assert [chat.id for chat in store.chats()] == [other.id, written]
    assert empty.id not in [chat.id for chat in store.chats()]
    assert [chat.id for chat in store.chats("world")] == [written]
    assert [chat.id for chat in store.chats("0% cot")] == [other.id]
    assert store.chats("n_w") == [store.chats("cotton")[0]]
    assert store.chats("x_w") == []
    assert store.chats("\udcff") == []


def test_what_was_taken_back_is_not_found(store: ChatStore, written: int) -> None:
    store.supersede_from(written, store.open(written).messages[-1].id)
    assert store.chats("world") == []
    assert store.chats()[0].messages == 1


def test_a_deleted_chat_is_gone_with_all_it_held(store: ChatStore, written: int) -> None:
    store.delete(written)
    with pytest.raises(StoreError, match="no chat"):
        store.open(written)
    raw = sqlite3.connect(store.path or "")
    for table in ("messages", "replies", "pieces"):
        assert raw.execute(f"SELECT COUNT(*) FROM {table}").fetchone() == (0,)


def test_files_are_for_their_owner_only(store: ChatStore) -> None:
    assert store.path is not None
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"chats\.db cannot be opened"):
        ChatStore(tmp_path / "file" / "chats.db")


def test_a_file_that_is_no_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreError, match="cannot be opened: file is not a database"):
        ChatStore(path)
    assert path.read_bytes().startswith(b"something else")


def test_without_a_file_chats_live_in_memory() -> None:
    store = ChatStore(None)
    chat = store.create_chat("smol")
    store.add_user_message(chat.id, "hi")
    assert store.open(chat.id).messages[0].content == "hi"


def test_any_text_can_be_kept(store: ChatStore) -> None:
    chat = store.create_chat("smol")
    text = "\x1b[2J emoji 🏳️‍🌈 שלום 漢字 \x00 [/INST]"
    store.add_user_message(chat.id, text + "\ud800")
    assert store.open(chat.id).messages[0].content == text + "�"
