"""The interface's end of the pipe: starts the engine's process, talks to it, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from fsd_chat.engine.logs import new_log
from fsd_chat.engine.messages import (
    PROTOCOL_VERSION,
    Command,
    Event,
    Failed,
    Hello,
    Shutdown,
    command_encoder,
    event_decoder,
)
from fsd_chat.engine.pipe import FrameError, Frames, frame

READ_SIZE = 65536
PATIENCE_S = 0.4
"""How long closing waits for a polite end, and again after a termination signal."""


class EngineClient:
    """One engine process at a time; it may be started again after it has ended.

    Belongs to one running event loop. Nothing here blocks that loop.
    """

    def __init__(self) -> None:
        self.log_path = Path(os.devnull)
        """The engine's own output; a new file for every start."""
        self._process: asyncio.subprocess.Process | None = None
        self._frames = Frames()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Exit status; negative for the signal that killed it; None before the end."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Start the process; its first event is Hello.

        Raises RuntimeError if it runs already and OSError if it cannot be started.
        """
        if self.running:
            raise RuntimeError("the engine is running already")
        self.log_path = new_log()
        self._frames = Frames()
        # stderr goes to the log even before the engine has set itself up.
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *engine_command(self.log_path),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                **_apart_from_the_terminal(),
            )

    def send(self, command: Command) -> None:
        """Queue `command` for the engine, in order and without waiting.

        To an engine that has ended nothing is sent; the end of `events` tells.
        """
        if not self.running or self._process is None or self._process.stdin is None:
            return
        # Writing to a pipe that broke would make asyncio log a warning to the terminal.
        if not self._process.stdin.is_closing():
            self._process.stdin.write(frame(command_encoder.encode(command)))

    async def events(self) -> AsyncIterator[Event]:
        """What the engine says; ends when the process has ended, however it did.

        An engine that speaks another version, or no protocol at all, is ended after a Failed.
        """
        process = self._process
        if process is None or process.stdout is None:
            return
        try:
            while data := await process.stdout.read(READ_SIZE):
                for payload in self._frames.feed(data):
                    yield _understood(payload)
        except _OtherVersion as error:
            yield Failed(kind="unsupported", message=str(error))
        except (msgspec.MsgspecError, FrameError) as error:
            yield Failed(
                kind="internal",
                message=f"the engine said something that cannot be understood ({error}) and was "
                f"ended; its log: {self.log_path}",
            )
        await self._end(process)

    async def close(self) -> None:
        """End the process within a second: asked first, then terminated, then killed."""
        if self._process is None:
            return
        self.send(Shutdown())
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._end(self._process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            if not await _ended(process):
                _signal(process, signal.SIGTERM)
                await _ended(process)
        finally:
            # Also after a cancellation, and also whatever the engine had started itself.
            _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        await process.wait()


def engine_command(log: Path) -> list[str]:
    # -P: a torch.py in the folder one happens to stand in is not torch.
    return [sys.executable, "-P", "-m", "fsd_chat.engine.worker", "--log", str(log)]


def _environment() -> dict[str, str]:
    """The engine finds every module where this process finds it."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"}


def _apart_from_the_terminal() -> dict[str, Any]:
    """Ctrl+C in the terminal is for the interface; it must not reach the engine."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


async def _ended(process: asyncio.subprocess.Process) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    return process.returncode is not None


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    """To the engine and, where sessions exist, to every process it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            if process.returncode is None:
                process.kill()
        else:
            os.killpg(process.pid, number)


class _OtherVersion(Exception):
    """The engine comes from another release."""


def _understood(payload: bytes) -> Event:
    event = event_decoder.decode(payload)
    if isinstance(event, Hello) and event.version != PROTOCOL_VERSION:
        raise _OtherVersion(
            f"the engine speaks version {event.version} of the protocol and this program version "
            f"{PROTOCOL_VERSION}; install fsd-chat again"
        )
    return event
