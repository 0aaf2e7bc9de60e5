"""`fsd-chat run`: one reply on standard output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.status import Status
from rich.text import Text

from fsd_chat.chats.conversation import Reply, ReplyStart
from fsd_chat.chats.display import one_line, plain
from fsd_chat.chats.export import finite, footer, reply_as_json
from fsd_chat.commands.request import Request
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

OK, FAILURE, INTERRUPTED = 0, 1, 130
REQUEST = 1


def run(request: Request, prompt: str, *, as_json: bool, without_template: bool) -> int:
    """Write one reply; returns the exit status. Raises OSError where writing fails."""
    system = request.config.system
    first = (Message(role="system", content=system),) if system else ()
    command = Generate(
        request=REQUEST,
        messages=(*first, Message(role="user", content=prompt)),
        knob=request.knob,
        sampling=request.sampling,
        plain=without_template,
    )
    return asyncio.run(_write(request, command, _Output(as_json)))


async def _write(request: Request, command: Generate, output: _Output) -> int:
    engine = EngineClient()
    writing = _Writing(engine, command, output)
    await engine.start()
    with output.status:
        try:
            _on_interrupt(writing)
            engine.send(request.pair)
            status = await writing.follow()
        finally:
            await engine.close()
    output.conclude(writing.reply, writing.failure)
    return INTERRUPTED if writing.interrupted else status


def _on_interrupt(writing: _Writing) -> None:
    # Windows has no such handlers; there asyncio cancels the task, and what was said stays too.
    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, writing.interrupt)


class _Output:
    """Text on standard output; what is going on, and the statistics, on standard error."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        # A file gets what the model wrote; a terminal would act on control characters in it.
        self._shown: Callable[[str], str] = plain if sys.stdout.isatty() else str
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.status = Status("starting the engine", console=self._console)

    def doing(self, what: str) -> None:
        self.status.update(Text(one_line(what, 200)))

    def tell(self, line: str, style: str = "") -> None:
        self._console.print(Text(one_line(line, 1000), style=style))

    def text(self, text: str) -> None:
        if text and not self._as_json:
            self.status.stop()
            sys.stdout.write(self._shown(text))
            sys.stdout.flush()

    def conclude(self, reply: Reply | None, failure: str) -> None:
        if reply is not None and self._as_json:
            document = finite(reply_as_json(reply))
            print(json.dumps(document, ensure_ascii=False, allow_nan=False), flush=True)
        elif reply is not None and reply.text and not reply.text.endswith("\n"):
            print(flush=True)
        if failure:
            self.tell(f"fsd-chat: {failure}")
        elif reply is not None:
            self.tell(footer(reply), style="dim")


class _Writing:
    """Follows the engine from its start to the end of the reply."""

    def __init__(self, engine: EngineClient, command: Generate, output: _Output) -> None:
        self.reply: Reply | None = None
        """From the moment it is asked for."""
        self.failure = ""
        self.interrupted = False
        self._engine = engine
        self._command = command
        self._output = output
        self._asked = 0.0
        self._task = asyncio.current_task()

    def interrupt(self) -> None:
        """Ctrl+C: stop the reply and keep what was said. Before a reply, or again: end at once."""
        if self._task is not None and (self.interrupted or self.reply is None):
            self._task.cancel()
        self.interrupted = True
        self._engine.send(Stop(request=REQUEST))

    async def follow(self) -> int:
        """The exit status, once there is nothing more to come."""
        try:
            async for event in self._engine.events():
                if isinstance(event, Failed):
                    self.failure = event.message
                    return FAILURE
                if isinstance(event, Ready):
                    self._ask(event)
                elif self.reply is None:
                    self._wait(event)
                else:
                    self._take(event, self.reply)
                if isinstance(event, Finished):
                    return OK
        except asyncio.CancelledError:
            self.interrupted = True
            return INTERRUPTED
        self.failure = f"the engine ended unexpectedly; its log: {self._engine.log_path}"
        return FAILURE

    def _wait(self, event: Event) -> None:
        if isinstance(event, Loading):
            share = "" if event.fraction is None else f" {event.fraction:.0%}"
            self._output.doing(event.stage + share)

    def _ask(self, ready: Ready) -> None:
        for notice in ready.notices:
            self._output.tell(f"fsd-chat: {notice}")
        self.reply = Reply(
            ReplyStart(
                pair=ready.name,
                target=ready.target,
                draft=ready.draft,
                knob=self._command.knob,
                sampling=self._command.sampling,
                target_revision=ready.target_revision,
                draft_revision=ready.draft_revision,
            )
        )
        self._asked = time.monotonic()
        self._engine.send(self._command)

    def _take(self, event: Event, reply: Reply) -> None:
        match event:
            case Started():
                reply.seed = event.seed
                reply.prompt_tokens = event.prompt_tokens
                reply.cached_tokens = event.cached_tokens
            case Prefill():
                self._output.doing("reading the prompt")
            case KnobSet():
                reply.timeline.append(event)
            case Round():
                if reply.first_token_s is None:
                    reply.first_token_s = time.monotonic() - self._asked
                reply.rounds.append(event)
                if event.reasoning:
                    self._output.doing("thinking")
                self._output.text(event.text)
            case Finished():
                reply.finish = event
                self._output.text(event.text)
            case _:
                pass
