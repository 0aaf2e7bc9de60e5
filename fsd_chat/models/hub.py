"""Models of the Hugging Face hub: what is here already is used as it is, the rest is fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, is_offline_mode, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import tqdm

from fsd_chat.models.errors import ModelError
from fsd_chat.models.progress import Progress

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""At least one of them belongs to a model that has been fetched whole."""
TEXTS = (".json", ".jinja", ".model", ".tiktoken", ".txt")
"""Endings of configuration and tokenizer files."""


def snapshot(
    repository: str, revision: str | None, gguf: str | None, with_code: bool, progress: Progress
) -> Path:
    """The local folder of `repository`; asks the hub only for what is not here.

    gguf: only this file. Raises ModelError.
    """
    try:
        folder = cached(repository, revision, gguf)
        if folder is None or (with_code and _lacks_its_code(folder)):
            _fetch(repository, revision, gguf, with_code, progress)
            folder = cached(repository, revision, gguf)
    except HFValidationError as error:
        raise ModelError(
            "not-found",
            f"there is no model at {repository}: it is no local folder or GGUF file, and no hub "
            "id, which looks like owner/name",
        ) from error
    if folder is None:
        raise ModelError("not-found", f"{repository} has no model that can be loaded")
    return folder


def cached(repository: str, revision: str | None, gguf: str | None = None) -> Path | None:
    """The folder of a model that has been fetched whole."""

    def find(name: str) -> Path | None:
        path = try_to_load_from_cache(repository, name, revision=revision)
        return Path(path) if isinstance(path, str) else None

    if gguf is not None:
        file = find(gguf)
        return file and file.parents[gguf.count("/")]
    config, index = find("config.json"), find(INDEX)
    shards = _shards(index) if index else {WEIGHTS}
    whole = config and all(map(find, shards)) and any(map(find, TOKENIZERS))
    return config.parent if config and whole else None


def _lacks_its_code(folder: Path) -> bool:
    """Fetched when the model was not trusted yet."""
    config = folder / "config.json"
    needs_code = config.is_file() and "auto_map" in config.read_text(encoding="utf-8")
    return needs_code and not any(folder.glob("*.py"))


def _shards(index: Path) -> set[str]:
    names: Iterable[str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return set(names)


def _fetch(
    repository: str, revision: str | None, gguf: str | None, with_code: bool, progress: Progress
) -> None:
    if is_offline_mode():
        raise ModelError(
            "not-found",
            f"{repository} is not on this machine, and HF_HUB_OFFLINE forbids fetching it",
        )
    progress(f"asking the hub for {repository}", None)
    try:
        sizes = _sizes(repository, revision)
        wanted = _wanted(repository, revision, sizes, gguf, with_code)
        total = sum(sizes[name] for name in wanted)
        stage = f"downloading {repository} ({total / 1e9:.1f} GB)"
        bar = _counting(total, lambda fraction: progress(stage, fraction))
        for name in wanted:
            hf_hub_download(repository, name, revision=revision, tqdm_class=bar)
    except (ModelError, HFValidationError):
        raise
    except Exception as error:
        # What the network, the hub and a full disk may raise has no common class.
        raise ModelError("not-found", _explained(repository, revision, error)) from error


def _explained(repository: str, revision: str | None, error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return (
            f"{repository} is gated on the hub: accept its licence there, and log in with "
            "`hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no model {repository}, neither here nor on the hub; check the spelling, or "
            "log in with `hf auth login` if it is private"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repository} has no revision {revision} on the hub"
    return f"{repository} is not on this machine and cannot be fetched: {error}"


def _sizes(repository: str, revision: str | None) -> dict[str, int]:
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _wanted(
    repository: str,
    revision: str | None,
    sizes: Mapping[str, int],
    gguf: str | None,
    with_code: bool,
) -> list[str]:
    """Configuration and tokenizer, then one set of weights: never pickled ones."""
    if gguf is not None:
        if gguf not in sizes:
            others = ", ".join(name for name in sizes if name.endswith(".gguf")) or "none"
            raise ModelError(
                "not-found", f"{repository} has no file {gguf}; its GGUF files: {others}"
            )
        return [gguf]
    endings = (*TEXTS, ".py") if with_code else TEXTS
    texts = [name for name in sizes if name.endswith(endings) and "/" not in name]
    if INDEX in sizes:
        weights = _shards(Path(hf_hub_download(repository, INDEX, revision=revision)))
    elif WEIGHTS in sizes:
        weights = {WEIGHTS}
    else:
        raise ModelError(
            "unsupported",
            f"{repository} has no safetensors weights; others are not loaded, since they can run "
            "code. For one of its GGUF files write owner/name:file.gguf",
        )
    return [*texts, *sorted(weights & sizes.keys())]


def _counting(total: int, tell: Callable[[float], None]) -> type[tqdm]:
    """A class of bars that draw nothing and together count up to `total`."""
    done = 0

    class Counting(tqdm):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            nonlocal done
            done += int(n or 0)
            tell(min(1.0, done / max(1, total)))

    return Counting
