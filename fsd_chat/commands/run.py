"""`fsd-chat run`: one reply on standard output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.status import Status

from fsd_chat.chats.conversation import Reply, ReplyStart
from fsd_chat.chats.display import plain
from fsd_chat.chats.export import finite, footer, reply_as_json
from fsd_chat.engine.client import EngineClient
from fsd_chat.engine.messages import (
    Event,
    Failed,
    Finished,
    Generate,
    KnobSet,
    Loading,
    Message,
    Prefill,
    Ready,
    Round,
    Started,
    Stop,
)

if TYPE_CHECKING:
    from fsd_chat.cli import Request

OK, FAILURE, INTERRUPTED = 0, 1, 130
REQUEST = 1


def run(request: Request, prompt: str, *, as_json: bool, plain_prompt: bool) -> int:
    """Write one reply; returns the exit status."""
    one = _OneReply(request, prompt, as_json, plain_prompt)
    try:
        return asyncio.run(one.write())
    except BrokenPipeError:
        # Whoever read the reply has gone; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


class _OneReply:
    def __init__(self, request: Request, prompt: str, as_json: bool, plain_prompt: bool) -> None:
        self.request = request
        self.as_json = as_json
        system = (Message(role="system", content=request.system),) if request.system else ()
        self.command = Generate(
            request=REQUEST,
            messages=(*system, Message(role="user", content=prompt)),
            knob=request.knob,
            sampling=request.sampling,
            plain=plain_prompt,
        )
        self.reply: Reply | None = None
        self.asked = 0.0
        self.interrupted = False
        self.to_terminal = sys.stdout.isatty()
        # The statistics go to standard error, so that only the reply is on standard output.
        self.console = Console(stderr=True, highlight=False)
        self.status = Status("starting the engine", console=self.console)

    async def write(self) -> int:
        engine = EngineClient()
        await engine.start()
        self._catch_interrupts(engine)
        with self.status:
            try:
                engine.send(self.request.pair)
                code = await self._follow(engine)
            finally:
                await engine.close()
        if self.reply is not None:
            self._conclude(self.reply)
        return INTERRUPTED if self.interrupted else code

    def _catch_interrupts(self, engine: EngineClient) -> None:
        """Ctrl+C stops the reply and keeps what was said; before a reply it ends the program."""

        task = asyncio.current_task()

        def interrupt() -> None:
            if task is not None and (self.interrupted or self.reply is None):
                task.cancel()
            self.interrupted = True
            engine.send(Stop(request=REQUEST))

        # Windows has no such handlers; there KeyboardInterrupt ends the program.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)

    async def _follow(self, engine: EngineClient) -> int:
        try:
            async for event in engine.events():
                if isinstance(event, Ready):
                    self._ask(engine, event)
                code = self._take(event, engine)
                if code is not None:
                    return code
        except asyncio.CancelledError:
            return INTERRUPTED
        self._fail(f"the engine ended unexpectedly; its log: {engine.log_path}")
        return FAILURE

    def _ask(self, engine: EngineClient, ready: Ready) -> None:
        for notice in ready.notices:
            self.console.print(f"fsd-chat: {plain(notice)}", markup=False)
        self.reply = Reply(
            ReplyStart(
                pair=ready.name,
                target=ready.target,
                draft=ready.draft,
                knob=self.command.knob,
                sampling=self.command.sampling,
                target_revision=ready.target_revision,
                draft_revision=ready.draft_revision,
            )
        )
        self.asked = time.monotonic()
        engine.send(self.command)

    def _take(self, event: Event, engine: EngineClient) -> int | None:
        """The exit status once the reply is over."""
        match event:
            case Loading():
                share = "" if event.fraction is None else f" {event.fraction:.0%}"
                self.status.update(f"{plain(event.stage)}{share}")
            case Prefill():
                self.status.update("reading the prompt")
            case Started() if self.reply is not None:
                self.reply.seed = event.seed
                self.reply.prompt_tokens = event.prompt_tokens
                self.reply.cached_tokens = event.cached_tokens
            case KnobSet() if self.reply is not None:
                self.reply.timeline.append(event)
            case Round() if self.reply is not None:
                self._add(event, self.reply)
            case Finished() if self.reply is not None:
                self.reply.finish = event
                self._show(event.text)
                return OK
            case Failed():
                where = f" (log: {engine.log_path})" if event.kind == "internal" else ""
                self._fail(f"{event.message}{where}")
                return FAILURE
            case _:
                pass
        return None

    def _add(self, event: Round, reply: Reply) -> None:
        if reply.first_token_s is None:
            reply.first_token_s = time.monotonic() - self.asked
            self.status.stop()
        reply.rounds.append(event)
        self._show(event.text)

    def _show(self, text: str) -> None:
        if not self.as_json:
            sys.stdout.write(plain(text) if self.to_terminal else text)
            sys.stdout.flush()

    def _fail(self, message: str) -> None:
        self.status.stop()
        print(f"fsd-chat: {plain(message)}", file=sys.stderr)

    def _conclude(self, reply: Reply) -> None:
        if not self.as_json:
            if reply.text and not reply.text.endswith("\n"):
                print(flush=True)
            self.console.print(footer(reply), markup=False, style="dim")
            return
        print(json.dumps(finite(self._document(reply)), ensure_ascii=False, allow_nan=False))

    @staticmethod
    def _document(reply: Reply) -> dict[str, Any]:
        return {"prompt_tokens": reply.prompt_tokens, **reply_as_json(reply)}
