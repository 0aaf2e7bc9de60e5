"""Telling what a model thinks from what it answers, while the text is still coming."""

from __future__ import annotations

from typing import Literal, NamedTuple

OPEN, CLOSE = "<think>", "</think>"

Where = Literal["start", "reasoning", "answer"]


class Split(NamedTuple):
    answer: str = ""
    reasoning: str = ""


class ThinkingSplit:
    """Splits `<think>…</think>` at the head of a reply from the answer after it.

    Only a block that opens the reply is reasoning: a tag further on is text about tags. `where` is
    `reasoning` if the prompt has opened the block already, `answer` if no block can come any more.
    Line breaks right after either tag belong to the tag, as the templates have it.
    """

    def __init__(self, where: Where = "start") -> None:
        self.where: Where = where
        self._held = ""
        self._after_tag = where == "reasoning"

    def feed(self, text: str) -> Split:
        """What `text` makes certain."""
        self._held += text
        answer = reasoning = ""
        if self.where == "start":
            self._look_for_opening()
        if self.where == "reasoning":
            reasoning = self._until_closing()
        if self.where == "answer":
            answer = self._without_line_breaks(self._held)
            self._held = ""
        return Split(answer, reasoning)

    def flush(self) -> Split:
        """What was held back as the possible start of a tag; the reply is over."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self.where == "reasoning" else Split(answer=held)

    def _look_for_opening(self) -> None:
        seen = self._held.lstrip()
        if seen.startswith(OPEN):
            self._held = seen.removeprefix(OPEN)
            self.where, self._after_tag = "reasoning", True
        elif not OPEN.startswith(seen):
            self.where = "answer"

    def _until_closing(self) -> str:
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            self._held = after
            reasoning = self._without_line_breaks(before)
            self.where, self._after_tag = "answer", True
            return reasoning
        keep = held_back(self._held, CLOSE)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        return self._without_line_breaks(certain)

    def _without_line_breaks(self, text: str) -> str:
        if self._after_tag:
            text = text.lstrip("\r\n")
            self._after_tag = not text
        return text


def held_back(text: str, *wanted: str) -> int:
    """How many of the last characters of `text` may be the start of one of `wanted`."""
    longest = min(len(text), max((len(one) for one in wanted), default=0))
    for length in range(longest, 0, -1):
        if any(len(one) > length and one.startswith(text[-length:]) for one in wanted):
            return length
    return 0
