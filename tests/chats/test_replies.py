"""A reply is appended to while it is written, at a cost that does not grow with it."""

from __future__ import annotations

import sqlite3

import msgspec
import pytest
from chats.samples import FINISHED, ROUNDS, START, TIMELINE, Clock

from fsd_chat.chats.conversation import Reply, ReplyStart
from fsd_chat.chats.store import FLUSH_EVERY_S, ChatStore, ReplyWriter, StoreError
from fsd_chat.engine.messages import Failed, Finished, Knob, Round, Sampling, Started, TokenRecord


@pytest.fixture
def writer(store: ChatStore) -> ReplyWriter:
    chat = store.create_chat("smol")
    store.add_user_message(chat.id, "question")
    return store.begin_reply(chat.id, START)


def stored(store: ChatStore) -> Reply:
    """The reply as another process reads it."""
    other = ChatStore(store.path)
    message = other.open(other.chats()[0].id).messages[-1]
    assert message.reply is not None
    assert message.content == message.reply.text
    return message.reply


def rows(store: ChatStore, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(store.path or "") as raw:
        return raw.execute(query).fetchall()


def test_a_flush_writes_what_is_new_and_nothing_else(
    store: ChatStore, writer: ReplyWriter, clock: Clock
) -> None:
    writer.started(Started(request=1, prompt_tokens=1, cached_tokens=0, seed=1))
    token = TokenRecord(5, "word ", "accepted", 0.1, 0.5, 0.5, 0.5, None, (0.1,) * 5)
    statements: list[str] = []
    store._database._connection.set_trace_callback(statements.append)
    lengths = []
    for index in range(300):
        clock.now += 1
        statements.clear()
        writer.round(Round(request=1, index=index, tokens=(token,) * 4, text="word " * 4))
        lengths.append(sum(map(len, statements)))
    assert max(lengths[100:]) <= lengths[50] + 20
    (found,) = rows(store, "SELECT MAX(LENGTH(rounds)), COUNT(*) FROM pieces")
    assert isinstance(found[0], int)
    assert found[0] < 1000
    assert found[1] == 300
    writer.finished(Finished(request=1, reason="length"))
    assert stored(store).text == "word " * 1200


def test_rounds_between_two_flushes_go_into_one_row(
    store: ChatStore, writer: ReplyWriter, clock: Clock
) -> None:
    for index in range(100):
        clock.now += FLUSH_EVERY_S / 10
        writer.round(Round(request=1, index=index, tokens=(), text="a"))
    (found,) = rows(store, "SELECT COUNT(*) FROM pieces")
    assert found[0] in (10, 11)
    assert len(stored(store).text) >= 90


def test_a_timer_brings_a_slow_round_to_disk(
    store: ChatStore, writer: ReplyWriter, clock: Clock
) -> None:
    writer.round(ROUNDS[0])
    writer.round(ROUNDS[1])
    writer.flush_if_due()
    assert stored(store).text == "Hello"
    clock.now += FLUSH_EVERY_S
    writer.flush_if_due()
    assert stored(store).text == "Hello wor"
    writer.flush_if_due()
    assert rows(store, "SELECT COUNT(*) FROM pieces") == [(2,)]


def test_a_setting_made_after_the_last_round_is_kept_too(
    store: ChatStore, writer: ReplyWriter
) -> None:
    writer.knob(TIMELINE[0])
    writer.round(ROUNDS[0])
    writer.knob(TIMELINE[1])
    writer.finished(FINISHED)
    assert tuple(stored(store).timeline) == TIMELINE


def test_a_failed_reply_says_why(store: ChatStore, writer: ReplyWriter) -> None:
    writer.round(ROUNDS[0])
    writer.failed(Failed(kind="memory", message="out of memory", request=1))
    reply = stored(store)
    assert (reply.finish, reply.failure) == (None, "out of memory")
    assert reply.reason is None


def test_the_text_of_an_interrupted_reply_is_found(store: ChatStore, writer: ReplyWriter) -> None:
    writer.round(ROUNDS[0])
    writer.interrupted()
    assert len(store.chats("hello")) == 1


def test_the_text_of_a_reply_that_a_crash_cut_short_is_found(
    store: ChatStore, writer: ReplyWriter
) -> None:
    writer.round(ROUNDS[0])
    assert len(ChatStore(store.path).chats("hello")) == 1


def test_a_window_opened_meanwhile_does_not_cut_a_reply_short(
    store: ChatStore, writer: ReplyWriter, clock: Clock
) -> None:
    writer.round(ROUNDS[0])
    other = ChatStore(store.path)
    other.rename(other.chats()[0].id, "renamed")
    writer.round(ROUNDS[1])
    writer.finished(FINISHED)
    assert stored(store).text == "Hello world"
    assert len(store.chats("world")) == 1


def test_a_reply_without_a_token_is_no_reply(store: ChatStore, writer: ReplyWriter) -> None:
    writer.started(Started(request=1, prompt_tokens=1, cached_tokens=0, seed=1))
    writer.knob(TIMELINE[0])
    writer.interrupted("the engine died")
    assert rows(store, "SELECT COUNT(*) FROM replies") == [(0,)]


def test_what_was_left_out_of_the_prompt_is_kept(store: ChatStore, writer: ReplyWriter) -> None:
    writer.started(
        Started(request=1, prompt_tokens=1, cached_tokens=0, seed=2**63 - 1, dropped_turns=4)
    )
    writer.round(ROUNDS[0])
    assert (stored(store).dropped_turns, stored(store).seed) == (4, 2**63 - 1)


def test_settings_at_their_default_are_written_out_for_a_default_may_change(
    store: ChatStore, writer: ReplyWriter
) -> None:
    writer.knob(TIMELINE[0])
    writer.round(ROUNDS[0])
    ((start, timeline),) = rows(
        store, "SELECT start, timeline FROM replies JOIN pieces USING (message)"
    )
    assert isinstance(start, bytes)
    assert isinstance(timeline, bytes)
    plain_start = msgspec.msgpack.decode(start)
    assert set(plain_start["knob"]) == set(Knob.__struct_fields__)
    assert set(plain_start["sampling"]) == set(Sampling.__struct_fields__)
    (setting,) = msgspec.msgpack.decode(timeline)
    assert set(setting["knob"]) == set(Knob.__struct_fields__)


def test_every_setting_comes_back(store: ChatStore) -> None:
    chat = store.create_chat("smol")
    start = ReplyStart(
        pair="p",
        target="t",
        draft=None,
        knob=Knob(rule="cactus", divergence="tv", form="top-p", lookahead="3"),
        sampling=Sampling(logit_bias={5: -1.5}, stop=("a", "b"), seed=3, max_tokens=9),
        target_revision="r",
    )
    writer = store.begin_reply(chat.id, start)
    writer.round(ROUNDS[0])
    assert stored(store).start == start


def test_half_surrogates_in_names_do_not_stop_a_reply(store: ChatStore) -> None:
    chat = store.create_chat("pair \udcff", system="\ud800")
    start = msgspec.structs.replace(START, target="folder \udcff")
    store.begin_reply(chat.id, start).round(ROUNDS[0])
    assert stored(store).start.target == "folder �"


def test_a_reply_that_no_release_wrote_is_told_in_one_line(
    store: ChatStore, writer: ReplyWriter
) -> None:
    writer.round(ROUNDS[0])
    raw = sqlite3.connect(store.path or "")
    raw.execute("UPDATE replies SET start = ?", (msgspec.msgpack.encode({"pair": 1}),))
    raw.commit()
    other = ChatStore(store.path)
    with pytest.raises(StoreError, match="cannot read") as error:
        other.open(other.chats()[0].id)
    assert "\n" not in str(error.value)
