"""From token ids to text while they are still coming."""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Text that can no longer change, token by token.

    A character may take several tokens, and the space before a word may depend on what precedes it;
    the library's own stream knows both. Special tokens have no text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._unsaid: list[int] = []

    def step(self, id: int) -> str:
        """What token `id` makes certain; empty while a character is incomplete."""
        self._unsaid.append(id)
        text: str | None = self._stream.step(self._backend, id)
        if text is None:
            return ""
        self._unsaid.clear()
        return text

    def flush(self) -> str:
        """What was held back; the reply is over, so an incomplete character stays incomplete."""
        text: str = self._backend.decode(self._unsaid, skip_special_tokens=True)
        self._unsaid.clear()
        self._stream = DecodeStream(skip_special_tokens=True)
        return text
