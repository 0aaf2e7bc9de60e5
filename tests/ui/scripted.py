"""An engine whose every word a test decides, and ways to wait for what the app makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from textual.pilot import Pilot

from fsd_chat.engine.messages import (
    Command,
    Event,
    Finished,
    FinishReason,
    Generate,
    Knob,
    KnobSet,
    Origin,
    Ready,
    Round,
    Started,
    TokenRecord,
)

READY = Ready(
    name="smol",
    target="SmolLM2-135M-Instruct",
    draft="smol-draft",
    device="cpu",
    dtype="float32",
    vocabulary=49152,
    context=8192,
)
SPECTRUM_OF_A_DIVERGENCE = (1.0, 2.0, 3.0, 1.5, 4.0)
"""How the five divergences of a scripted token relate to the first of them."""
C = TypeVar("C", bound=Command)


def token(
    text: str, origin: Origin = "accepted", divergence: float = 0.05, exact: float = 0.8
) -> TokenRecord:
    verified = origin not in ("bonus", "target")
    spectrum = tuple(divergence * factor for factor in SPECTRUM_OF_A_DIVERGENCE)
    return TokenRecord(
        id=7,
        text=text,
        origin=origin,
        divergence=divergence if verified else None,
        exact=exact if verified else None,
        spectrum=spectrum if verified else (),
    )


class ScriptedEngine:
    """Says what it is told to say, remembers what it was sent, and can die."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self.sent: list[Command] = []
        self.closed = False
        self._coming: asyncio.Queue[Event | None] = asyncio.Queue()
        self._tokens = 0

    async def start(self) -> None: ...

    def send(self, command: Command) -> None:
        self.sent.append(command)

    async def events(self) -> AsyncIterator[Event]:
        while (event := await self._coming.get()) is not None:
            yield event

    async def close(self) -> None:
        self.closed = True
        self.die()

    def die(self) -> None:
        """What was told before is still heard."""
        self._coming.put_nowait(None)

    def tell(self, *events: Event) -> None:
        for event in events:
            self._coming.put_nowait(event)

    def ready(self) -> None:
        self.tell(READY)

    def of(self, kind: type[C]) -> list[C]:
        """The commands of one kind, in order."""
        return [command for command in self.sent if isinstance(command, kind)]

    @property
    def request(self) -> int:
        """Of the reply that was asked for last."""
        return self.of(Generate)[-1].request

    def begin(self, seed: int = 1, dropped_turns: int = 0) -> None:
        """Answer the last request: the prompt is read, no token has come."""
        self._tokens = 0
        self.tell(
            Started(
                request=self.request,
                prompt_tokens=12,
                cached_tokens=3,
                seed=seed,
                dropped_turns=dropped_turns,
            ),
        )
        self.knob_set(self.of(Generate)[-1].knob)

    def knob_set(self, knob: Knob) -> None:
        """The knob governs the tokens that come from now on."""
        self.tell(KnobSet(request=self.request, index=self._tokens, knob=knob))

    def write(self, *pieces: str, origin: Origin = "accepted", reasoning: str = "") -> None:
        """One round whose tokens are `pieces`."""
        tokens = tuple(token(piece, origin) for piece in pieces)
        self.tell(
            Round(
                request=self.request,
                index=self._tokens,
                tokens=tokens,
                text="".join(pieces),
                reasoning=reasoning,
                drafted=len(pieces),
                draft_s=0.01,
                verify_s=0.03,
                total_s=0.05,
            )
        )
        self._tokens += len(pieces)

    def finish(self, reason: FinishReason = "end", text: str = "") -> None:
        self.tell(Finished(request=self.request, reason=reason, text=text))

    def reply(self, *pieces: str) -> None:
        """A whole reply, one round a piece."""
        self.begin()
        for piece in pieces:
            self.write(piece)
        self.finish()


class Engines:
    """Makes engines for the app, and keeps them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: list[ScriptedEngine] = []
        self.stillborn = False
        """Engines made from now on die before they are ready."""

    def __call__(self) -> ScriptedEngine:
        engine = ScriptedEngine(self._folder / f"engine-{len(self.made) + 1}.log")
        if self.stillborn:
            engine.die()
        self.made.append(engine)
        return engine

    @property
    def now(self) -> ScriptedEngine:
        return self.made[-1]


async def wait_until(pilot: Pilot[None], true: Callable[[], object], seconds: float = 10) -> None:
    """Let the app work until `true()` is, however long this machine takes for it."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"did not come true within {seconds:g} s")
        await pilot.pause(0.02)
