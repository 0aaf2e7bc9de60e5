"""The client, the pipe and the worker together, with tiny models."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import pytest_asyncio

from fsd_chat.engine.client import EngineClient
from fsd_chat.engine.messages import (
    Event,
    Failed,
    Finished,
    Generate,
    Hello,
    Knob,
    KnobSet,
    Loading,
    LoadPair,
    Message,
    ModelSource,
    Ready,
    Role,
    Round,
    Sampling,
    SetKnob,
    Started,
    Stop,
)

if TYPE_CHECKING:
    from conftest import TinyModels

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROLES: tuple[Role, Role] = ("user", "assistant")
EventType = TypeVar("EventType", Hello, Loading, Ready, Started, Round, KnobSet, Finished, Failed)


def pair(target: Path | str, draft: Path | str | None = None) -> LoadPair:
    def source(location: Path | str) -> ModelSource:
        return ModelSource(location=str(location), device="cpu", dtype="float32")

    return LoadPair(name="tiny", target=source(target), draft=source(draft) if draft else None)


def ask(request: int, *turns: str, max_tokens: int = 8) -> Generate:
    messages = tuple(Message(role=ROLES[i % 2], content=turn) for i, turn in enumerate(turns))
    return Generate(
        request=request,
        messages=messages,
        knob=Knob(rule="exact", lookahead="3"),
        sampling=Sampling(temperature=0.0, max_tokens=max_tokens),
    )


class Conversation:
    """A client and everything its engine has said."""

    def __init__(self) -> None:
        self.client = EngineClient()
        self.heard: list[Event] = []

    async def start(self) -> None:
        await self.client.start()
        self._events = self.client.events()
        self.process = (await self.until(Hello)).process

    async def until(
        self, kind: type[EventType], matches: Callable[[EventType], bool] = lambda event: True
    ) -> EventType:
        """Listen up to an event of this kind."""
        async with asyncio.timeout(60):
            async for event in self._events:
                self.heard.append(event)
                if isinstance(event, kind) and matches(event):
                    return event
                assert kind is Failed or not isinstance(event, Failed), event
        raise AssertionError(f"the engine ended: {self.client.log_path.read_text()}")

    async def rest(self) -> list[Event]:
        async with asyncio.timeout(20):
            return [event async for event in self._events]

    def text(self, request: int) -> str:
        return "".join(
            event.text
            for event in self.heard
            if isinstance(event, Round | Finished) and event.request == request
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversation]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FSD_CHAT_DATA", str(tmp_path_factory.mktemp("data")))
        conversation = Conversation()
        yield conversation
        await conversation.client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(shared: Conversation) -> Conversation:
    """One process for all tests, but for those that end it."""
    if not shared.client.running:
        await shared.start()
    shared.heard.clear()
    return shared


async def test_a_pair_is_loaded_and_replies_and_the_second_turn_reuses_the_caches(
    engine: Conversation, letters: Path
) -> None:
    engine.client.send(pair(letters, letters))
    ready = await engine.until(Ready)
    assert any(isinstance(event, Loading) for event in engine.heard)
    assert (ready.name, ready.device, ready.dtype) == ("tiny", "cpu", "float32")
    assert ready.draft is not None

    engine.client.send(ask(1, "hi"))
    finished = await engine.until(Finished)
    assert (finished.request, finished.reason) == (1, "length")
    assert engine.text(1) == "abcdefgh"

    engine.client.send(ask(2, "hi", "abcdefgh", "on"))
    started = await engine.until(Started)
    first = next(event for event in engine.heard if isinstance(event, Started))
    assert started.cached_tokens == first.prompt_tokens + 8 - 1
    await engine.until(Finished)
    assert engine.text(2) == "abcdefgh"


async def test_a_reply_is_stopped_while_it_is_written(engine: Conversation, letters: Path) -> None:
    engine.client.send(pair(letters, letters))
    await engine.until(Ready)
    engine.client.send(ask(1, "hi", max_tokens=90_000))
    await engine.until(Round)
    engine.client.send(Stop(request=1))
    began = time.monotonic()
    finished = await engine.until(Finished)
    assert finished.reason == "stopped"
    assert time.monotonic() - began < 2

    partial = engine.text(1)
    engine.client.send(ask(2, "hi", partial, "on"))
    started = await engine.until(Started)
    assert started.cached_tokens > len(partial)


async def test_the_knob_is_turned_while_a_reply_is_written(
    engine: Conversation, letters: Path
) -> None:
    engine.client.send(pair(letters, letters))
    await engine.until(Ready)
    engine.client.send(ask(1, "hi", max_tokens=90_000))
    await engine.until(Round)
    turned = Knob(rule="target-only")
    engine.client.send(SetKnob(request=1, knob=turned))
    set_ = await engine.until(KnobSet, lambda event: event.knob == turned)
    next_round = await engine.until(Round)
    assert set_.index == next_round.index > 0
    engine.client.send(Stop(request=1))
    await engine.until(Finished)
    origins = {
        token.origin: round.index < set_.index
        for round in engine.heard
        if isinstance(round, Round)
        for token in round.tokens
    }
    assert origins == {"accepted": True, "bonus": True, "target": False}


async def test_an_engine_killed_during_a_reply_ends_the_events_and_starts_again(
    engine: Conversation, letters: Path
) -> None:
    engine.client.send(pair(letters, letters))
    await engine.until(Ready)
    engine.client.send(ask(1, "hi", max_tokens=90_000))
    await engine.until(Round)
    os.kill(engine.process, signal.SIGKILL)
    rest = await engine.rest()
    assert all(isinstance(event, Round) for event in rest)
    assert engine.client.returncode == -signal.SIGKILL

    await engine.start()
    engine.client.send(pair(letters))
    engine.client.send(ask(2, "hi"))
    await engine.until(Finished)
    assert engine.text(2) == "abcdefgh"


async def test_closing_in_the_middle_of_a_reply_is_over_within_a_second(
    engine: Conversation, letters: Path
) -> None:
    engine.client.send(pair(letters, letters))
    engine.client.send(ask(1, "hi", max_tokens=90_000))
    await engine.until(Round)
    began = time.monotonic()
    await engine.client.close()
    assert time.monotonic() - began < 1
    assert engine.client.returncode == 0


async def test_a_target_that_is_not_there_is_named_and_the_engine_goes_on(
    engine: Conversation, letters: Path, tmp_path: Path
) -> None:
    engine.client.send(pair(tmp_path / "nowhere"))
    failure = await engine.until(Failed)
    assert (failure.kind, failure.request) == ("not-found", None)
    assert "nowhere" in failure.message
    assert "\n" not in failure.message
    engine.client.send(pair(letters))
    await engine.until(Ready)


async def test_a_model_without_a_template_is_refused_when_it_is_asked(
    engine: Conversation, tiny: TinyModels
) -> None:
    engine.client.send(pair(tiny.reciting("bare", "abc", chat_template=None)))
    await engine.until(Ready)
    engine.client.send(ask(3, "hi"))
    failure = await engine.until(Failed)
    assert (failure.kind, failure.request) == ("template", 3)


async def test_a_target_that_gives_no_numbers_fails_its_reply_only(
    engine: Conversation, tiny: TinyModels
) -> None:
    engine.client.send(pair(tiny.broken("broken-engine")))
    await engine.until(Ready)
    engine.client.send(ask(4, "hi"))
    failure = await engine.until(Failed)
    assert (failure.kind, failure.request) == ("non-finite", 4)


async def test_another_pair_takes_the_place_of_the_first(
    engine: Conversation, letters: Path, tiny: TinyModels
) -> None:
    engine.client.send(pair(letters))
    engine.client.send(pair(tiny.reciting("e2e-other", "xyz")))
    engine.client.send(ask(1, "hi"))
    await engine.until(Finished)
    assert engine.text(1) == "xyz"
