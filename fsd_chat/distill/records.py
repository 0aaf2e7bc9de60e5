"""What is kept of a conversation that the target wrote, and where."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

HELD_OUT = 12
"""One in so many questions is never trained on."""
OPEN = "open.safetensors"


@dataclass(frozen=True)
class Conversation:
    """n tokens and what the target said after each of them."""

    tokens: Tensor
    """[n] int32."""
    written: Tensor
    """[n] uint8: whose words follow each token. 0: the template's or a given question's; 1: a
    question that the target made up; 2: an answer of the target's."""
    features: Tensor
    """[n, levels, hidden] float16: the recorded layers' outputs; the last level is what the head
    reads, so the whole distribution can be had from it."""
    log_partition: Tensor
    """[n, temperatures] float32: log Σ exp(logits / temperature), over the whole vocabulary."""


PARTS = tuple(field.name for field in fields(Conversation))


class Shelf:
    """A folder of conversations, in files that are written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / OPEN).exists():
            # Whoever wrote here was killed; what it had begun is good as far as it goes.
            (folder / OPEN).rename(self._next())

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("conversations-*.safetensors"))

    def add(self, ended: Sequence[Conversation], begun: Sequence[Conversation] = ()) -> None:
        """Keep `ended` for good, and `begun` until the next time. Raises OSError."""
        if ended:
            self._write(ended, self._next())
        if begun:
            self._write(begun, self.folder / OPEN)
        else:
            (self.folder / OPEN).unlink(missing_ok=True)

    def _next(self) -> Path:
        last = self.files[-1].stem.rpartition("-")[2] if self.files else "-1"
        return self.folder / f"conversations-{int(last) + 1:06}.safetensors"

    def _write(self, conversations: Sequence[Conversation], place: Path) -> None:
        tensors = {part: torch.cat([getattr(one, part) for one in conversations]) for part in PARTS}
        tensors["lengths"] = torch.tensor([len(one.tokens) for one in conversations])
        save_whole(tensors, place)


def save_whole(
    tensors: dict[str, Tensor], place: Path, about: dict[str, str] | None = None
) -> None:
    """Write a file that is there whole or not at all. Raises OSError and SafetensorError."""
    unfinished = place.with_suffix(".writing")
    save_file(tensors, unfinished, about)
    unfinished.replace(place)


@dataclass(frozen=True)
class _Place:
    file: int
    start: int
    stop: int


class Stored(Sequence[Conversation]):
    """Conversations in files, read when they are asked for: memory holds none of them."""

    def __init__(self, files: Sequence[Path], held_out: bool | None = None) -> None:
        """held_out: only those that are, or are not."""
        self._files: list[Any] = [safe_open(file, framework="pt") for file in files]
        self._places: list[_Place] = []
        for number, file in enumerate(self._files):
            tokens, written = file.get_tensor("tokens"), file.get_tensor("written")
            start = 0
            for length in file.get_tensor("lengths").tolist():
                place = _Place(number, start, start := start + length)
                inside = slice(place.start, place.stop)
                if held_out is None or held_out == is_held_out(tokens[inside], written[inside]):
                    self._places.append(place)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each."""
        return [place.stop - place.start for place in self._places]

    def tokens(self) -> Iterator[Tensor]:
        """The tokens of each; what was recorded beside them, a thousand times as much, stays
        where it is."""
        for place in self._places:
            yield self._files[place.file].get_slice("tokens")[place.start : place.stop]

    def first(self, count: int) -> Stored:
        """A few of them."""
        some = copy.copy(self)
        some._places = self._places[:count]
        return some

    @overload
    def __getitem__(self, which: int) -> Conversation: ...
    @overload
    def __getitem__(self, which: slice) -> list[Conversation]: ...
    def __getitem__(self, which: int | slice) -> Conversation | list[Conversation]:
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        place = self._places[which]
        file = self._files[place.file]
        parts = {part: file.get_slice(part)[place.start : place.stop] for part in PARTS}
        return Conversation(**parts)


def is_held_out(tokens: Tensor, written: Tensor) -> bool:
    """By the first question, so that one asked twice is on the same side twice."""
    answers = (written == 2).nonzero()
    asked = tokens[: int(answers[0]) if len(answers) else None]
    digest = hashlib.blake2b(asked.numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT == 0
