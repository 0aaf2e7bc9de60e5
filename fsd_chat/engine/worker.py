"""The process that owns the models: `python -m fsd_chat.engine.worker --log PATH`.

Commands come in on stdin and events go out on what was stdout when it started; everything that
anyone prints goes to the log. A thread of its own listens, so that stopping works at any moment
and the process never outlives the one that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fsd_chat.engine.failures import EngineError, failed
from fsd_chat.engine.inbox import Inbox, ReplyControl
from fsd_chat.engine.messages import (
    PROTOCOL_VERSION,
    Event,
    Hello,
    Loading,
    LoadPair,
    event_encoder,
)
from fsd_chat.engine.pipe import FrameError, Frames, frame

if TYPE_CHECKING:
    from fsd_chat.engine.session import Session

READ_SIZE = 65536
GARBAGE = 2
"""Exit status after bytes on the pipe that are no frames."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m fsd_chat.engine.worker", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="file for all other output")
    log: Path = parser.parse_args(arguments).log
    commands, events = take_the_pipe(log)
    prepare_the_process()
    emitter = Emitter(events)
    emitter.emit(Hello(version=PROTOCOL_VERSION, process=os.getpid()))
    inbox = Inbox()
    threading.Thread(target=listen, args=(commands, inbox), daemon=True).start()
    worker = Worker(inbox, emitter, log)
    while True:
        worker.do_next()


def take_the_pipe(log: Path) -> tuple[int, int]:
    """File descriptors for commands and events; from now on 0 is empty, and 1 and 2 are the log.

    Native code and child processes use the descriptors too, so replacing sys.stdout is not enough.
    """
    commands, events = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(empty, 0)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(empty)
    os.close(written)
    return commands, events


def prepare_the_process() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # The reply's thread and the pipe's are enough; a fork among them makes tokenizers warn.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if sys.platform != "win32":
        # For `leave`. A handler, since programs started from here would inherit being deaf to it.
        signal.signal(signal.SIGHUP, lambda number, where: None)
    print(f"{datetime.now():%Y-%m-%d %H:%M:%S}", "engine", os.getpid(), "on", platform.platform())


def leave(status: int) -> NoReturn:
    """End the process now, in the middle of a forward too, and whatever it started (a download)."""
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        with contextlib.suppress(OSError):
            os.killpg(0, signal.SIGHUP)
    os._exit(status)


def listen(commands: int, inbox: Inbox) -> NoReturn:
    """Take in commands until the pipe ends; never waits for the models. Then ends the process."""
    frames = Frames()
    try:
        while data := os.read(commands, READ_SIZE):
            for payload in frames.feed(data):
                if not inbox.put(payload):
                    leave(0)
    except FrameError as error:
        print(f"the pipe carried something else than commands: {error}")
        leave(GARBAGE)
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)


class Emitter:
    """Writes events to a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def emit(self, event: Event) -> None:
        """Waits while the pipe is full; ends the process if nobody can read it any more."""
        data = memoryview(frame(event_encoder.encode(event)))
        try:
            while data:
                data = data[os.write(self._pipe, data) :]
        except OSError:
            leave(1)


class Worker:
    """Loads and replies, one at a time. A failure is told and survived."""

    def __init__(self, inbox: Inbox, emitter: Emitter, log: Path) -> None:
        self._inbox = inbox
        self._emit = emitter.emit
        self._log = str(log)
        self._session: Session | None = None

    def do_next(self) -> None:
        """Wait for work and do it."""
        work = self._inbox.next()
        failure: Event | None = None
        try:
            match work:
                case LoadPair():
                    self._load(work)
                case ReplyControl():
                    self._reply(work)
                case EngineError():
                    raise work
        except Exception as error:
            traceback.print_exc()
            request = work.command.request if isinstance(work, ReplyControl) else None
            failure = failed(error, request, self._log)
        if failure is not None:
            # Only now has the traceback let go of the tensors in its frames.
            self._free_memory()
            self._emit(failure)

    def _load(self, command: LoadPair) -> None:
        # torch takes seconds to import; until here the process lives without it.
        self._progress("starting the engine", None)
        from fsd_chat.engine.hardware import use_physical_cores
        from fsd_chat.engine.session import load, ready

        use_physical_cores()
        # The pair before it goes first: memory may not be enough for both.
        self._session = None
        self._free_memory()
        self._session = load(command, self._progress)
        self._emit(ready(self._session.pair))

    def _progress(self, stage: str, fraction: float | None) -> None:
        self._emit(Loading(stage=stage, fraction=fraction))

    def _reply(self, control: ReplyControl) -> None:
        try:
            if self._session is None:
                raise EngineError("bad-request", "no pair is loaded yet, so nothing can reply")
            finished = self._session.generate(control, self._emit)
        finally:
            self._inbox.done(control)
        self._emit(finished)

    def _free_memory(self) -> None:
        if "torch" in sys.modules:
            from fsd_chat.engine.hardware import free_memory

            free_memory()


if __name__ == "__main__":
    main()
