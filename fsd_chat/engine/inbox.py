"""Commands on their way from the pipe's thread to the thread that owns the models."""

from __future__ import annotations

from queue import SimpleQueue

import msgspec

from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.messages import (
    Generate,
    Knob,
    LoadPair,
    SetKnob,
    Shutdown,
    Stop,
    command_decoder,
)


class ReplyControl:
    """One asked reply, and what may still change about it.

    The pipe's thread replaces the attributes, the other thread reads them between two rounds.
    """

    def __init__(self, command: Generate) -> None:
        self.command = command
        self.knob: Knob = command.knob
        self.stopped = False


Work = LoadPair | ReplyControl | EngineError
"""What is done one at a time: a load, a reply, or telling of a command that made no sense."""


class Inbox:
    """Loads and replies wait their turn; Stop and SetKnob reach their reply at once."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Work] = SimpleQueue()
        self._replies: dict[int, ReplyControl] = {}

    def put(self, payload: bytes) -> bool:
        """Take in one encoded command; False if it asks for the end of the process."""
        try:
            command = command_decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._work.put(EngineError("bad-request", f"a command was not understood: {error}"))
            return True
        match command:
            case Shutdown():
                return False
            case LoadPair():
                self._work.put(command)
            case Generate():
                self._ask(command)
            case Stop():
                if reply := self._replies.get(command.request):
                    reply.stopped = True
            case SetKnob():
                if reply := self._replies.get(command.request):
                    reply.knob = command.knob
        return True

    def _ask(self, command: Generate) -> None:
        if command.request in self._replies:
            problem = f"request {command.request} is being answered already; choose a new number"
            self._work.put(EngineError("bad-request", problem))
            return
        reply = self._replies[command.request] = ReplyControl(command)
        self._work.put(reply)

    def next(self) -> Work:
        """Waits for the next piece of work."""
        return self._work.get()

    def done(self, reply: ReplyControl) -> None:
        """`reply` is over: later words about it are ignored and its number is free again."""
        self._replies.pop(reply.command.request, None)
