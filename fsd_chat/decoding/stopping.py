"""When a reply is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsd_chat.decoding.records import Finish

TextWatch = Callable[[int], bool]
"""Told of every committed token in order; True once the text has come to a stop string."""


@dataclass(frozen=True)
class Stopping:
    end_ids: frozenset[int]
    """Any of these ends the reply. Models have several: an end of text and an end of turn."""
    max_tokens: int
    watch: TextWatch | None = None

    def cut(self, said: int, tokens: Sequence[int]) -> tuple[int, Finish | None]:
        """How many of a round's `tokens` stand after `said` earlier ones, and why it ends there.

        What follows an end token or a stop string was never said: it is neither counted nor cached.
        """
        for i, token in enumerate(tokens):
            if said + i >= self.max_tokens:
                return i, "length"
            if token in self.end_ids:
                return i + 1, "end"
            if self.watch is not None and self.watch(token):
                return i + 1, "stop-string"
        reached = said + len(tokens) >= self.max_tokens
        return len(tokens), "length" if reached else None
