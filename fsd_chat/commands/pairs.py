"""`fsd-chat pairs`: what there is, and what fits this machine."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsd_chat.chats.display import one_line
from fsd_chat.config import Config, PairChoice
from fsd_chat.engine.messages import ModelSource
from fsd_chat.places import embedded_home

OVERHEAD = 1.2
"""Caches and working memory on top of the weights, roughly, for a few thousand tokens."""
FLOAT32 = 2
"""A CPU without fast bfloat16 computes in float32: twice the bytes."""


@dataclass(frozen=True)
class Machine:
    memory_bytes: int | None
    gpu_bytes: int | None

    @property
    def room(self) -> int | None:
        return self.gpu_bytes or self.memory_bytes

    def needs(self, weights: int) -> int:
        return int(weights * OVERHEAD * (1 if self.gpu_bytes else FLOAT32))


@dataclass(frozen=True)
class Row:
    name: str
    target: str
    draft: str | None
    weights_bytes: int | None
    needs_bytes: int | None
    fits: bool | None
    """None where size or memory is not known."""
    on_disk: bool
    licence: str
    note: str


def pairs(config: Config, *, as_json: bool) -> int:
    machine = this_machine()
    rows = [row(choice, machine) for choice in config.pairs.values()]
    if as_json:
        print(json.dumps({"machine": asdict(machine), "pairs": [asdict(one) for one in rows]}))
    else:
        _print(rows, machine, config.pair)
    return 0


def row(choice: PairChoice, machine: Machine) -> Row:
    weights = _weights(choice)
    needs = None if weights is None else machine.needs(weights)
    known = needs is not None and machine.room is not None
    sources = [choice.target, *([choice.draft] if choice.draft else [])]
    return Row(
        name=choice.name,
        target=choice.target.location,
        draft=choice.draft.location if choice.draft else None,
        weights_bytes=weights,
        needs_bytes=needs,
        fits=(needs or 0) <= (machine.room or 0) if known else None,
        on_disk=all(on_disk(source) for source in sources),
        licence=choice.licence,
        note=choice.note,
    )


def _weights(choice: PairChoice) -> int | None:
    if choice.target_bytes is not None:
        return choice.target_bytes + (choice.draft_bytes or 0)
    sizes = [_local_size(one) for one in (choice.target, choice.draft) if one is not None]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _local_size(source: ModelSource) -> int | None:
    path = Path(source.location).expanduser()
    if path.is_file():
        return path.stat().st_size
    if path.is_dir():
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    return 0 if source.location == "prompt-lookup" else None


def on_disk(source: ModelSource) -> bool:
    """Whether the weights are here already, so that nothing would be downloaded."""
    if source.location == "prompt-lookup":
        return True
    if source.location in ("smol", "smol-draft"):
        return embedded_home().is_dir()
    if Path(source.location).expanduser().exists():
        return True
    return _in_hub_cache(source.location)


def _in_hub_cache(repository: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        names = ("model.safetensors", "model.safetensors.index.json")
        return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)
    except HFValidationError:
        return False


def this_machine() -> Machine:
    return Machine(_memory(), _gpu_memory())


def _memory() -> int | None:
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _windows_memory() -> int | None:
    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            ("total", ctypes.c_ulonglong),
            ("rest", ctypes.c_ulonglong * 6),
        )

    status = Status(length=ctypes.sizeof(Status))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 (exists on Windows only)
    return int(status.total) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def _gpu_memory() -> int | None:
    """Of the first NVIDIA GPU; asking torch would take seconds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
        return int(told.splitlines()[0]) * 2**20
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return None


def _print(rows: list[Row], machine: Machine, chosen: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("pair", "target + draft", "weights", "needs", "fits", "here", "note"):
        table.add_column(heading, justify="right" if heading in ("weights", "needs") else "left")
    for one in rows:
        mark = "› " if one.name == chosen else "  "
        models = one.target if one.draft is None else f"{one.target} + {one.draft}"
        table.add_row(
            Text(mark + one_line(one.name, 30), style="bold" if one.name == chosen else ""),
            Text(one_line(models, 200)),
            Text(_size(one.weights_bytes)),
            Text(_size(one.needs_bytes)),
            Text({True: "yes", False: "no", None: "?"}[one.fits]),
            Text("yes" if one.on_disk else "no"),
            Text(one_line(one.note, 200), style="dim"),
        )
    console = Console(highlight=False)
    console.print(table)
    kind = "GPU memory" if machine.gpu_bytes else "memory"
    console.print(
        Text(f"\n{_size(machine.room)} of {kind} here. › is the pair that starts.", style="dim")
    )


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
