"""The text of one reply: from tokens to what may be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fsd_chat.engine.thinking import Split, ThinkingSplit, held_back


class ReplyText:
    """Cuts at the first stop string and keeps reasoning apart, one token at a time.

    What may yet turn out to belong to a stop string or a tag is held back.
    """

    def __init__(
        self, step: Callable[[int], str], stop: Sequence[str], thinking: ThinkingSplit
    ) -> None:
        """`step` turns the next token id into the text that it makes certain."""
        self.stop_string: str | None = None
        """The stop string that was met."""
        self._step = step
        self._stop = tuple(stop)
        self._thinking = thinking
        self._held = ""
        self._pieces: list[str] = []
        self._certain = ""

    def watch(self, token: int) -> bool:
        """Read the next token; True once a stop string is complete."""
        piece = self._step(token)
        self._pieces.append(piece)
        self._read(piece)
        return self.stop_string is not None

    def _read(self, piece: str) -> None:
        if self.stop_string is not None:
            return
        self._held += piece
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            cut, self.stop_string = min(found)
            self._certain += self._held[:cut]
            self._held = ""
            return
        certain = len(self._held) - held_back(self._held, *self._stop)
        self._certain += self._held[:certain]
        self._held = self._held[certain:]

    def take(self) -> tuple[list[str], Split]:
        """Since the last call: what each token added, and the text that became certain."""
        pieces, self._pieces = self._pieces, []
        certain, self._certain = self._certain, ""
        return pieces, self._thinking.feed(certain)

    def finish(self, rest: str) -> Split:
        """Everything held back, `rest` of the token text included; the reply is over."""
        self._read(rest)
        remaining = self._certain + self._held
        self._certain = self._held = ""
        fed, flushed = self._thinking.feed(remaining), self._thinking.flush()
        return Split(fed.answer + flushed.answer, fed.reasoning + flushed.reasoning)
