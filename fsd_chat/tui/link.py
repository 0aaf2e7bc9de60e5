"""Between the app and the engine's process: starts it, listens, and starts another if it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from fsd_chat.engine.messages import Command, Event, Failed, LoadPair, Ready, Shutdown

MOST_FAILED_STARTS = 3
"""Engines in a row that died before they were ready; after that, starting is left to the user."""


class Engine(Protocol):
    """What the app needs of an engine; `EngineClient` is one."""

    @property
    def log_path(self) -> Path: ...

    async def start(self) -> None: ...

    def send(self, command: Command) -> None: ...

    def events(self) -> AsyncIterator[Event]: ...

    async def close(self) -> None: ...


class EngineLink:
    """One engine at a time, for as long as the app runs."""

    def __init__(
        self,
        factory: Callable[[], Engine],
        heard: Callable[[Event], None],
        lost: Callable[[Path, bool], None],
    ) -> None:
        """heard: told of every event. lost: told the log of an engine that died, and whether
        another one is being started."""
        self._factory = factory
        self._heard = heard
        self._lost = lost
        self._engine: Engine | None = None
        self._wanted = asyncio.Event()
        self._closing = False
        self.given_up = False
        """No engine runs, and none is started unless the user wants it."""

    async def run(self, pair: LoadPair) -> None:
        """Keep an engine with `pair` running until `close`."""
        self._pair = pair
        failed_starts = 0
        while not self._closing:
            self._engine = self._factory()
            ready = await self._listen(self._engine)
            if self._is_closing():
                return
            failed_starts = 0 if ready else failed_starts + 1
            again = failed_starts < MOST_FAILED_STARTS
            self._lost(self._engine.log_path, again)
            if not again:
                await self._until_wanted()
                failed_starts = 0

    async def _until_wanted(self) -> None:
        self.given_up = True
        self._wanted.clear()
        await self._wanted.wait()
        self.given_up = False

    def _is_closing(self) -> bool:
        return self._closing

    async def _listen(self, engine: Engine) -> bool:
        """Until the engine ends; whether it had become ready."""
        ready = False
        try:
            await engine.start()
        except OSError as error:
            self._heard(Failed(kind="internal", message=f"the engine cannot be started: {error}"))
            return False
        engine.send(self._pair)
        async for event in engine.events():
            ready = ready or isinstance(event, Ready)
            self._heard(event)
        return ready

    def load(self, pair: LoadPair) -> None:
        self._pair = pair
        self.restart()
        self.send(pair)

    def restart(self) -> None:
        """Start an engine again after it was given up."""
        self._wanted.set()

    def send(self, command: Command) -> None:
        if self._engine is not None:
            self._engine.send(command)

    def begin_to_close(self) -> None:
        """Tell the engine to end, without waiting for it."""
        self._closing = True
        self._wanted.set()
        self.send(Shutdown())

    async def close(self) -> None:
        self.begin_to_close()
        if self._engine is not None:
            await self._engine.close()
