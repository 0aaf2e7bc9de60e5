"""From token ids to text while they are still coming."""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream


class TextStream:
    """Text that can no longer change, token by token.

    A character may take several tokens, and the space before a word may depend on what precedes it;
    the library's own stream knows both. Special tokens have no text.

    What the steps and the flush give, joined, is what decoding all ids at once gives, but for bytes
    that are no UTF-8: where a vocabulary falls back to single bytes, decoding all at once also
    takes back the characters before a stray byte. Said stays said here, and each stray byte is one
    U+FFFD.
    """

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: a transformers tokenizer with a `tokenizers` backend."""
        self._backend = tokenizer.backend_tokenizer
        self._begin()

    def _begin(self) -> None:
        self._stream = DecodeStream(skip_special_tokens=True)
        self._unsaid: list[int] = []

    def step(self, id: int) -> str:
        """What token `id` makes certain; empty while a character is incomplete."""
        self._unsaid.append(id)
        text = self._feed(id)
        if text is None:
            return ""
        self._unsaid.clear()
        return text

    def flush(self) -> str:
        """What was held back; the reply is over, so an incomplete character stays incomplete."""
        text: str = self._backend.decode(self._unsaid, skip_special_tokens=True)
        self._begin()
        return text

    def _feed(self, id: int) -> str | None:
        try:
            return self._stream.step(self._backend, id)
        except Exception:
            # The library has no class of its own for this: stray bytes changed what was said
            # before them. A new stream reads on from the first token that has not been said.
            self._stream = DecodeStream(skip_special_tokens=True)
            said = [self._stream.step(self._backend, unsaid) for unsaid in self._unsaid]
            return "".join(text or "" for text in said)
