"""`fsd-chat pairs`: what there is, and what fits this machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsd_chat.catalogue import PairChoice
from fsd_chat.chats.display import one_line
from fsd_chat.commands.machine import Machine, this_machine
from fsd_chat.config import Config
from fsd_chat.engine.messages import ModelSource
from fsd_chat.places import embedded_home

PROMPT_LOOKUP = "prompt-lookup"
EMBEDDED = ("smol", "smol-draft")


@dataclass(frozen=True)
class Row:
    name: str
    target: str
    draft: str | None
    weights_bytes: int | None
    """Of both models, in bfloat16."""
    needs_bytes: int | None
    fits: bool | None
    """None where size or memory is not known."""
    on_disk: bool
    """Nothing would have to be downloaded."""
    licence: str
    note: str


def pairs(config: Config, *, as_json: bool) -> int:
    """Print the table or one JSON object; returns the exit status."""
    machine = this_machine()
    rows = [row(choice, machine) for choice in config.pairs.values()]
    if as_json:
        found = {"machine": asdict(machine), "pairs": [asdict(one) for one in rows]}
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(rows, machine, config.pair)
    return 0


def row(choice: PairChoice, machine: Machine) -> Row:
    pair = choice.load()
    sources = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    weights = weights_bytes(choice, sources)
    needs = None if weights is None else machine.needs(weights)
    room = machine.room
    return Row(
        name=choice.name,
        target=choice.target,
        draft=choice.draft,
        weights_bytes=weights,
        needs_bytes=needs,
        fits=None if needs is None or room is None else needs <= room,
        on_disk=all(on_disk(source) for source in sources),
        licence=choice.licence,
        note=choice.note,
    )


def weights_bytes(choice: PairChoice, sources: list[ModelSource]) -> int | None:
    """As the entry says, else as the files in local folders say; None where nothing does."""
    told = (choice.target_bytes, choice.draft_bytes)
    sizes = [
        size if size is not None else _local_bytes(source)
        for source, size in zip(sources, told, strict=False)
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _local_bytes(source: ModelSource) -> int | None:
    if source.location == PROMPT_LOOKUP:
        return 0
    files = list(Path(source.location).expanduser().glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def on_disk(source: ModelSource) -> bool:
    """Whether the weights are here already, so that nothing would be downloaded."""
    if source.location == PROMPT_LOOKUP:
        return True
    if source.location in EMBEDDED:
        return embedded_home().is_dir()
    return Path(source.location).expanduser().exists() or _in_hub_cache(source)


def _in_hub_cache(source: ModelSource) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, _, gguf = source.location.partition(":")

    def cached(name: str) -> Path | None:
        found = try_to_load_from_cache(repository, name, revision=source.revision)
        return Path(found) if isinstance(found, str) else None

    try:
        index = cached("model.safetensors.index.json")
        if gguf or index is None:
            return cached(gguf or "model.safetensors") is not None
        # The index comes before the weights: a download may have ended between them.
        return all(cached(shard) for shard in set(_shards(index)))
    except HFValidationError:
        return False


def _shards(index: Path) -> list[str]:
    try:
        return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return ["model.safetensors"]


def _print(rows: list[Row], machine: Machine, chosen: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pair", no_wrap=True)
    table.add_column("target + draft", overflow="fold")
    table.add_column("needs", justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("here", no_wrap=True)
    for one in rows:
        mark, style = ("› ", "bold") if one.name == chosen else ("  ", "")
        table.add_row(
            Text(mark + one_line(one.name, 30), style=style),
            _models(one),
            Text(_size(one.needs_bytes)),
            Text({True: "yes", False: "no", None: "?"}[one.fits]),
            Text("yes" if one.on_disk else "no"),
        )
    console = Console(highlight=False)
    console.print(table)
    kind = "memory" if machine.gpu_bytes is None else "GPU memory"
    console.print(
        Text(f"\n{_size(machine.room)} of {kind} here. › is the pair that starts.", style="dim")
    )


def _models(one: Row) -> Text:
    text = Text(one_line(one.target, 200))
    if one.draft is not None:
        text.append(f"\n+ {one_line(one.draft, 200)}")
    remarks = [one_line(remark, 200) for remark in (one.note, one.licence) if remark]
    return text.append(f"\n{'. '.join(remarks)}" if remarks else "", style="dim")


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
