"""The app, its real engine and the embedded pair together."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual.pilot import Pilot
from ui.scripted import wait_until

from fsd_chat.catalogue import catalogue
from fsd_chat.chats.conversation import Reply
from fsd_chat.chats.store import ChatStore
from fsd_chat.config import Config
from fsd_chat.engine.client import EngineClient
from fsd_chat.engine.messages import Knob, Sampling
from fsd_chat.places import theme_folders
from fsd_chat.tui.app import ChatApp
from fsd_chat.tui.themes import load_themes
from fsd_chat.tui.widgets.prompt import Prompt

PATIENCE_S = 240.0
"""For a machine that converts the pair first."""
QUITTING_S = 1.5
"""A second, and a half for what a test adds to it on a busy machine."""
TOKENS = 24


@dataclass
class RealChat:
    app: ChatApp
    pilot: Pilot[None]
    engines: list[EngineClient] = field(default_factory=list)

    async def until(self, true: Callable[[], object]) -> None:
        await wait_until(self.pilot, true, PATIENCE_S)

    async def send(self, text: str) -> None:
        self.app.chat.query_one(Prompt).insert(text)
        await self.pilot.press("enter")

    @property
    def process(self) -> int:
        process = self.engines[-1]._process
        assert process is not None
        return process.pid

    @property
    def reply(self) -> Reply:
        """The last one, as far as it has come."""
        conversation = self.app.talk.conversation
        assert conversation is not None
        reply = conversation.messages[-1].reply
        assert reply is not None
        return reply

    def writing(self, tokens: int) -> bool:
        writer = self.app.talk.writer
        return writer is not None and len(writer.reply.tokens) >= tokens


Chatting = Callable[[], AbstractAsyncContextManager[RealChat]]


@pytest.fixture
def chatting(tmp_path: Path) -> Chatting:
    """Runs the app, with the pair loaded."""
    engines: list[EngineClient] = []

    def engine() -> EngineClient:
        engines.append(EngineClient())
        return engines[-1]

    @asynccontextmanager
    async def run() -> AsyncIterator[RealChat]:
        store = ChatStore(tmp_path / "data" / "chats.db")
        pairs = catalogue()
        app = ChatApp(
            Config(Path("config.toml"), pairs=pairs),
            store,
            engine,
            pairs["smol"].load(),
            Knob(rule="fsd-paper", threshold=0.0, lookahead="4"),
            Sampling(temperature=0.7, seed=5, max_tokens=TOKENS),
            load_themes(theme_folders()),
        )
        app.begin_with_theme("dusk")
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            chat = RealChat(app, pilot, engines)
            await chat.until(lambda: app.talk.ready)
            yield chat
        store.close()

    return run


@pytest.fixture
async def chat(chatting: Chatting) -> AsyncIterator[RealChat]:
    async with chatting() as chat:
        yield chat


async def test_turning_the_threshold_within_a_reply_governs_the_rounds_from_then_on(
    chat: RealChat,
) -> None:
    await chat.send("Count from one to twenty.")
    await chat.until(lambda: chat.writing(2))
    await chat.send("/T 0.65")
    await chat.until(lambda: not chat.app.talk.busy)
    first, turned = chat.reply.timeline
    assert (first.index, first.knob.threshold, turned.knob.threshold) == (0, 0.0, 0.65)
    assert 2 <= turned.index < TOKENS
    # The paper's rule is the threshold and nothing else, which shows on every single token.
    for index, token in enumerate(chat.reply.tokens):
        if token.divergence is None:
            continue
        threshold = turned.knob.threshold if index >= turned.index else 0.0
        accepted = token.origin in ("accepted", "fuzzy")
        assert accepted == (token.divergence <= threshold), (index, token)
    before = [one for one in chat.reply.tokens[: turned.index] if one.divergence is not None]
    after = [one for one in chat.reply.tokens[turned.index :] if one.divergence is not None]
    assert any(one.origin == "recovered" for one in before)
    assert any(one.origin in ("accepted", "fuzzy") for one in after)

    await chat.send("/save reply.json")
    await chat.until(lambda: Path("reply.json").exists())
    saved = json.loads(Path("reply.json").read_text(encoding="utf-8"))
    reply = saved["messages"][1]["reply"]
    assert [one["from_token"] for one in reply["timeline"]] == [0, turned.index]
    assert len(reply["tokens"]) == len(chat.reply.tokens)
    assert saved["messages"][1]["content"] == chat.reply.text


async def test_an_engine_killed_within_a_reply_is_replaced_and_the_next_message_works(
    chat: RealChat,
) -> None:
    await chat.send("Tell me about the sea.")
    await chat.until(lambda: chat.writing(2))
    os.kill(chat.process, signal.SIGKILL)
    await chat.until(lambda: not chat.app.talk.busy)
    partial = chat.reply
    assert partial.text
    assert partial.finish is None
    notices = [str(notice.message) for notice in chat.app._notifications]
    assert any("the engine stopped unexpectedly" in one for one in notices)
    assert any(str(chat.engines[0].log_path) in one for one in notices)
    await chat.send("And the moon?")
    conversation = chat.app.talk.conversation
    assert conversation is not None
    await chat.until(
        lambda: len(conversation.messages) == 4 and conversation.messages[-1].reply.finish
    )
    assert len(chat.engines) == 2
    stored = chat.app.talk.store.open(conversation.chat.id)
    contents = [one.content for one in stored.messages]
    assert contents[:3] == ["Tell me about the sea.", partial.text, "And the moon?"]
    assert contents[3] == chat.reply.text


async def test_quitting_within_a_reply_takes_less_than_a_second_and_ends_the_engine(
    chatting: Chatting,
) -> None:
    async with chatting() as chat:
        await chat.send("Tell me about the sea.")
        await chat.until(lambda: chat.writing(1))
        process = chat.process
        began = time.monotonic()
        await chat.pilot.press("ctrl+q")
    assert time.monotonic() - began < QUITTING_S
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
