"""Where one model comes from: the embedded pair, a folder, a GGUF file, or the hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsd_chat.engine.messages import ModelSource
from fsd_chat.models.embedded import embedded_folder
from fsd_chat.models.errors import ModelError
from fsd_chat.models.hub import snapshot
from fsd_chat.models.progress import Progress

EMBEDDED = {"smol": "target", "smol-draft": "draft"}


@dataclass(frozen=True)
class Files:
    """A model on this machine."""

    folder: Path
    name: str
    """For people."""
    gguf: str | None = None
    """Below `folder`; None where the weights are safetensors."""
    revision: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What every `from_pretrained` has to be told. Nothing is asked of the hub any more."""
        gguf = {} if self.gguf is None else {"gguf_file": self.gguf}
        return {"local_files_only": True, **gguf}


def locate(source: ModelSource, progress: Progress) -> Files:
    """The files of `source`, fetched or made first where need be. Raises ModelError."""
    location = source.location
    if location in EMBEDDED:
        return Files(embedded_folder(EMBEDDED[location], progress), location)
    path = Path(location).expanduser()
    if path.is_file():
        return _of_file(path)
    if path.is_dir():
        return _of_folder(path)
    if _looks_like_a_path(location):
        raise ModelError("not-found", f"there is no model at {path}")
    return _of_hub(source, progress)


def _of_file(path: Path) -> Files:
    if path.suffix.lower() != ".gguf":
        raise ModelError(
            "unsupported", f"{path} is no GGUF file; name the folder of a safetensors model"
        )
    return Files(path.parent, path.stem, gguf=path.name)


def _of_folder(path: Path) -> Files:
    if (path / "config.json").is_file():
        return Files(path, path.resolve().name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _of_file(files[0])
    choice = f"; name one of its GGUF files ({files[0].name}, …)" if files else ""
    raise ModelError("not-found", f"the folder {path} holds no model (no config.json){choice}")


def _of_hub(source: ModelSource, progress: Progress) -> Files:
    repository, _, gguf = source.location.partition(":")
    folder = snapshot(repository, source.revision, gguf or None, source.trust_remote_code, progress)
    name = Path(gguf).stem if gguf else repository.rpartition("/")[2]
    return Files(folder, name, gguf or None, revision=folder.name)


def _looks_like_a_path(location: str) -> bool:
    """A hub id is `owner/name`, with `:file.gguf` after it for one file of the repository."""
    repository, colon, _ = location.partition(":")
    is_file = location.lower().endswith((".gguf", ".safetensors", ".bin", ".pt"))
    return (
        location.startswith((".", "~", os.sep))
        or Path(location).is_absolute()
        or repository.count("/") > 1
        or (is_file and not colon)
    )
