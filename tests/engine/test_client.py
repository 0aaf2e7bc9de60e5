from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fsd_chat.engine import client as client_module
from fsd_chat.engine.client import EngineClient
from fsd_chat.engine.messages import (
    PROTOCOL_VERSION,
    Event,
    Failed,
    Generate,
    Hello,
    Knob,
    Message,
    SetKnob,
    Stop,
    event_encoder,
)
from fsd_chat.engine.pipe import frame

pytestmark = pytest.mark.asyncio

QUESTION = Generate(request=1, messages=(Message(role="user", content="hi"),))


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSD_CHAT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest_asyncio.fixture
async def client() -> AsyncIterator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


def instead_of_the_engine(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    command = [sys.executable, "-c", f"import os, signal, sys, time\n{program}"]
    monkeypatch.setattr(client_module, "engine_command", lambda log: command)


async def all_events(client: EngineClient) -> list[Event]:
    async with asyncio.timeout(20):
        return [event async for event in client.events()]


async def first_event(client: EngineClient) -> Event:
    async with asyncio.timeout(20):
        async for event in client.events():
            return event
    raise AssertionError("the engine ended without a word")


async def test_the_engine_greets_before_it_has_imported_torch(client: EngineClient) -> None:
    await client.start()
    hello = await first_event(client)
    assert isinstance(hello, Hello)
    assert hello.version == PROTOCOL_VERSION
    assert hello.process != os.getpid()
    assert client.running
    maps = Path(f"/proc/{hello.process}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()


async def test_closing_ends_the_process_within_a_second(client: EngineClient) -> None:
    await client.start()
    await first_event(client)
    began = time.monotonic()
    await client.close()
    assert time.monotonic() - began < 1
    assert not client.running
    assert client.returncode == 0
    assert await all_events(client) == []


async def test_a_process_that_refuses_to_go_is_killed_within_a_second(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_the_engine(
        monkeypatch,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sys.stdout.write('deaf'); sys.stdout.flush()\n"
        "time.sleep(60)",
    )
    await client.start()
    assert client._process is not None
    assert client._process.stdout is not None
    await client._process.stdout.readexactly(4)
    began = time.monotonic()
    await client.close()
    assert time.monotonic() - began < 1
    assert client.returncode == -signal.SIGKILL


async def test_an_engine_that_is_killed_ends_the_events(client: EngineClient) -> None:
    await client.start()
    hello = await first_event(client)
    assert isinstance(hello, Hello)
    os.kill(hello.process, signal.SIGKILL)
    assert await all_events(client) == []
    assert not client.running
    assert client.returncode == -signal.SIGKILL


async def test_a_dead_engine_can_be_talked_to_without_harm_and_started_again(
    client: EngineClient, capfd: pytest.CaptureFixture[str]
) -> None:
    await client.start()
    first_log = client.log_path
    hello = await first_event(client)
    assert isinstance(hello, Hello)
    os.kill(hello.process, signal.SIGKILL)
    for _ in range(20):
        client.send(Stop(request=1))
        await asyncio.sleep(0.01)
    assert await all_events(client) == []
    await client.start()
    assert isinstance(await first_event(client), Hello)
    assert client.log_path != first_log
    assert capfd.readouterr() == ("", "")


async def test_starting_twice_is_refused(client: EngineClient) -> None:
    await client.start()
    with pytest.raises(RuntimeError, match="running already"):
        await client.start()


async def test_a_client_that_was_never_started_is_silent(client: EngineClient) -> None:
    client.send(QUESTION)
    assert await all_events(client) == []
    assert not client.running
    assert client.returncode is None


async def test_an_engine_of_another_version_is_refused_by_name(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = frame(event_encoder.encode(Hello(version=99, process=1)))
    instead_of_the_engine(monkeypatch, f"os.write(1, {other!r}); time.sleep(60)")
    await client.start()
    (event,) = await all_events(client)
    assert isinstance(event, Failed)
    assert event.kind == "unsupported"
    assert "99" in event.message
    assert not client.running


@pytest.mark.parametrize("said", [b"Hello, world!", frame(b"no event")])
async def test_an_engine_that_speaks_no_protocol_is_ended_and_its_log_named(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    instead_of_the_engine(monkeypatch, f"os.write(1, {said!r}); time.sleep(60)")
    await client.start()
    (event,) = await all_events(client)
    assert isinstance(event, Failed)
    assert str(client.log_path) in event.message
    assert not client.running


async def test_what_kills_the_engine_at_its_start_is_in_the_log(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_the_engine(monkeypatch, "import no_such_module")
    await client.start()
    assert await all_events(client) == []
    assert client.returncode == 1
    assert "no_such_module" in client.log_path.read_text()


async def test_an_engine_that_nobody_listens_to_does_not_block_the_interface(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead_of_the_engine(monkeypatch, "time.sleep(60)")
    await client.start()
    began = time.monotonic()
    for request in range(2000):
        client.send(SetKnob(request=request, knob=Knob(lookahead="x" * 100)))
    assert time.monotonic() - began < 1
    began = time.monotonic()
    await client.close()
    assert time.monotonic() - began < 1


@pytest.mark.skipif(sys.platform == "win32", reason="there are no sessions")
async def test_the_terminals_interrupt_does_not_reach_the_engine(client: EngineClient) -> None:
    await client.start()
    hello = await first_event(client)
    assert isinstance(hello, Hello)
    assert os.getsid(hello.process) != os.getsid(0)


async def test_a_file_in_the_current_folder_does_not_replace_a_module(
    client: EngineClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('impostor')")
    monkeypatch.chdir(tmp_path)
    await client.start()
    assert isinstance(await first_event(client), Hello)
