from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsd_chat.engine.messages import (
    Command,
    Event,
    Failed,
    Generate,
    Hello,
    Message,
    Shutdown,
    command_encoder,
    event_decoder,
)
from fsd_chat.engine.pipe import Frames, frame


class Process:
    """A worker whose pipe the test holds in its hands."""

    def __init__(self, log: Path) -> None:
        self.log = log
        path = os.pathsep.join(filter(None, sys.path))
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "fsd_chat.engine.worker", "--log", str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._frames = Frames()
        self._events: list[Event] = []

    def write(self, data: bytes) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(data)
        self.popen.stdin.flush()

    def say(self, command: Command) -> None:
        self.write(frame(command_encoder.encode(command)))

    def hear(self) -> Event:
        assert self.popen.stdout is not None
        while not self._events:
            data = os.read(self.popen.stdout.fileno(), 65536)
            assert data, f"the engine ended: {self.log.read_text()}"
            self._events += [event_decoder.decode(payload) for payload in self._frames.feed(data)]
        return self._events.pop(0)

    def hang_up(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()

    def status(self, within: float = 2.0) -> int:
        return self.popen.wait(within)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "engine.log")
    assert isinstance(process.hear(), Hello)
    yield process
    process.popen.kill()
    process.popen.wait()
    for pipe in (process.popen.stdin, process.popen.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()


def test_the_end_of_the_pipe_ends_the_process(process: Process) -> None:
    process.hang_up()
    assert process.status() == 0


def test_asking_it_to_shut_down_ends_the_process(process: Process) -> None:
    process.say(Shutdown())
    assert process.status() == 0


def test_garbage_on_the_pipe_ends_the_process_cleanly(process: Process) -> None:
    process.write(b"\xff" * 100)
    assert process.status() == 2
    log = process.log.read_text()
    assert "something else than commands" in log
    assert "Traceback" not in log


def test_half_a_command_and_then_nothing_ends_the_process(process: Process) -> None:
    process.write(frame(command_encoder.encode(Shutdown()))[:-1])
    process.hang_up()
    assert process.status() == 0


def test_a_command_that_is_none_is_reported_and_survived(process: Process) -> None:
    process.write(frame(b"\x93\x01\x02\x03"))
    failure = process.hear()
    assert isinstance(failure, Failed)
    assert failure.kind == "bad-request"
    process.write(frame(b"\x81\xa4type\xa7Unknown"))
    failure = process.hear()
    assert isinstance(failure, Failed)
    assert "Unknown" in failure.message


def test_a_reply_without_a_pair_is_refused(process: Process) -> None:
    process.say(Generate(request=5, messages=(Message(role="user", content="hi"),)))
    failure = process.hear()
    assert isinstance(failure, Failed)
    assert (failure.kind, failure.request) == ("bad-request", 5)
    assert "no pair" in failure.message


def run(program: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", program],
        input=b"",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        timeout=30,
        check=False,
    )


def test_whatever_is_printed_goes_to_the_log_and_not_into_the_protocol(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = run(
        "import os, subprocess, sys, warnings\n"
        "from pathlib import Path\n"
        "from fsd_chat.engine import worker\n"
        f"commands, events = worker.take_the_pipe(Path({str(log)!r}))\n"
        "worker.prepare_the_process()\n"
        "print('from python')\n"
        "warnings.warn('a warning')\n"
        "os.write(1, b'from native code\\n')\n"
        "subprocess.run([sys.executable, '-c', 'print(\"from a child\")'])\n"
        "os.write(events, b'event')\n"
    )
    assert (ended.stdout, ended.stderr) == (b"event", b"")
    written = log.read_text()
    for said in ("from python", "a warning", "from native code", "from a child"):
        assert said in written


@pytest.mark.skipif(sys.platform == "win32", reason="there are no process groups")
def test_whatever_it_started_goes_with_it() -> None:
    ended = run(
        "import subprocess, sys\n"
        "from fsd_chat.engine import worker\n"
        "worker.prepare_the_process()\n"
        "program = 'import time; time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.DEVNULL)\n"
        "print(f'!{child.pid}')\n"
        "worker.leave(3)\n"
    )
    assert ended.returncode == 3
    assert gone(int(ended.stdout.decode().rpartition("!")[2]))


def gone(process: int, within: float = 2.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{process}/stat")
        with contextlib.suppress(OSError):
            # Nobody waits for an orphan here; a zombie is gone.
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        time.sleep(0.02)
    return False


def test_the_interface_leaves_the_engine_without_closing_and_both_are_gone() -> None:
    program = """
import asyncio, sys
from fsd_chat.engine.client import EngineClient
async def main():
    client = EngineClient()
    await client.start()
    async for event in client.events():
        print(event.process, flush=True)
        return
asyncio.run(main())
assert not {"torch", "transformers", "textual"} & set(sys.modules)
"""
    ended = run(program)
    assert ended.returncode == 0, ended.stderr
    assert gone(int(ended.stdout))
