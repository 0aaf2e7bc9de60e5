"""A store in a folder of its own, and a chat in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chats.samples import FINISHED, ROUNDS, START, TIMELINE, Clock

from fsd_chat.chats.store import ChatStore
from fsd_chat.engine.messages import Started


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "data" / "chats.db", clock)
    yield store
    store.close()


@pytest.fixture
def written(store: ChatStore, clock: Clock) -> int:
    """A chat with one question and one whole reply; its id."""
    chat = store.create_chat("smol", system="Be brief.")
    store.add_user_message(chat.id, "Say hello\nplease")
    writer = store.begin_reply(chat.id, START)
    writer.started(Started(request=1, prompt_tokens=40, cached_tokens=3, seed=2**62))
    writer.knob(TIMELINE[0])
    clock.now += 0.5
    writer.round(ROUNDS[0])
    writer.knob(TIMELINE[1])
    writer.round(ROUNDS[1])
    writer.finished(FINISHED)
    return chat.id
