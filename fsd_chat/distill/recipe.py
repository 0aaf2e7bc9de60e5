"""What is asked of a distillation, and the folder in which it happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from fsd_chat.models.errors import ModelError

WORK = ".distill"
"""Below the draft's folder: what is needed to go on, and may be deleted once that is not wanted."""
RECIPE, STATE = "recipe.json", "state.json"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides what a draft becomes. It is kept with the draft."""

    target: str
    out: str
    layers: tuple[int, ...] | int = 2
    """Which of the target's layers the draft begins as, or how many."""
    features: bool = True
    """Whether it reads the target's hidden states (EAGLE); without, any program can use it."""
    start: str | None = None
    """A draft to begin as, instead of as the target's layers: a folder, a hub id, `smol-draft`."""
    head: int | None = None
    """Ids that its head knows, the most frequent ones; 0 for all, None for a sixth of them."""
    hours: float | None = None
    tokens: int | None = None
    """Tokens that the target writes; they are then read `passes` times."""
    passes: int = 8
    prompts: str | None = None
    device: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    trust_remote_code: bool = False
    batch: int | None = None
    """Conversations that the target writes at once."""
    seed: int = 0


class Order(msgspec.Struct, frozen=True):
    """What the command hands to the process that does it."""

    recipe: Recipe
    further: bool = False


class State(msgspec.Struct, kw_only=True):
    """How far it is; kept at every checkpoint."""

    stage: Literal["write", "train", "done"] = "write"
    writing_s: float = 0.0
    training_s: float = 0.0
    tokens: int = 0
    """Written by the target."""
    steps: int = 0
    trained: int = 0
    """Tokens trained on, each pass counted."""


BUDGET = ("hours", "tokens", "passes", "device", "dtype", "batch")
"""May change when a distillation goes on."""


class Workplace:
    """The folder of a draft that is being made."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.work = out / WORK
        self.conversations = self.work / "conversations"
        self.checkpoint = self.work / "training.safetensors"
        self.vocabulary = self.work / "vocabulary.safetensors"

    def check(self, recipe: Recipe, further: bool) -> None:
        """Raises ModelError unless the folder is new, empty, or one in which the same recipe was
        begun. further: go on with a draft that is done."""
        if not (self.work / RECIPE).exists():
            if self.out.is_file():
                raise ModelError("bad-request", f"{self.out} is a file; choose a folder")
            if self.out.is_dir() and any(self.out.iterdir()):
                raise ModelError(
                    "bad-request",
                    f"{self.out} is not empty, and nothing is overwritten unasked; choose another "
                    "folder",
                )
            return
        before = self._read(RECIPE, Recipe)
        for field in Recipe.__struct_fields__:
            was, is_now = getattr(before, field), getattr(recipe, field)
            if was != is_now and field not in (*BUDGET, "out"):
                raise ModelError(
                    "bad-request",
                    f"{self.out} holds a draft that was begun with {_option(field)} {was}, not "
                    f"{is_now}; choose another folder, or the same options to go on",
                )
        if self.state.stage == "done" and not further:
            raise ModelError(
                "bad-request",
                f"{self.out} holds a finished draft, which is not overwritten; choose another "
                "folder, or add --further to go on training it",
            )

    def begin(self, recipe: Recipe) -> State:
        """Make the folder, or go on in it. Raises OSError."""
        self.work.mkdir(parents=True, exist_ok=True)
        self._write(RECIPE, recipe)
        state = self.state
        if state.stage == "done":
            state.stage = "write"
        return state

    @property
    def state(self) -> State:
        return self._read(STATE, State) if (self.work / STATE).exists() else State()

    def save(self, state: State) -> None:
        self._write(STATE, state)

    def _read(self, name: str, kind: type[Any]) -> Any:
        place = self.work / name
        try:
            return msgspec.json.decode(place.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            raise ModelError("bad-request", f"{place} is damaged: {error}") from error

    def _write(self, name: str, content: msgspec.Struct) -> None:
        place = self.work / name
        unfinished = place.with_suffix(".writing")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
        unfinished.replace(place)


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"
