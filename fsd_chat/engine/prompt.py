"""Making a conversation fit into the context by leaving out its oldest turns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsd_chat.engine.messages import Message

Render = Callable[[Sequence[Message]], list[int]]
"""A conversation → the token ids the model reads."""


class PromptTooLong(Exception):
    """Even the last message alone leaves no room for a reply; the message says the numbers."""


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    dropped_turns: int
    """Oldest messages left out."""


def fit(render: Render, messages: Sequence[Message], context: int, reply: int) -> Prompt:
    """The longest end of the conversation that fits `context` tokens, with its system message.

    Room is kept for `reply` tokens, but for no more than a quarter of the context; when only the
    last turn is left, one token of room is enough. Raises PromptTooLong.
    """
    room = max(1, min(reply, context // 4))
    system, turns = _turns(messages)
    last = len(turns) - 1

    def without(oldest: int) -> list[int]:
        return render([*system, *(message for turn in turns[oldest:] for message in turn)])

    # A prompt only gets shorter by leaving turns out, so the fewest are found by bisection.
    oldest = bisect_left(range(last), True, key=lambda i: len(without(i)) + room <= context)
    ids = without(oldest)
    if len(ids) >= context:
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens and the context holds {context}, "
            "reply included; shorten the last message or the system prompt"
        )
    return Prompt(ids, dropped_turns=sum(len(turn) for turn in turns[:oldest]))


def _turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """System messages at the head, then one list per user message with what follows it."""
    start = next((i for i, one in enumerate(messages) if one.role != "system"), len(messages))
    turns: list[list[Message]] = []
    for message in messages[start:]:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:start]), turns or [[]]
