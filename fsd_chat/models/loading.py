"""Loading one model: from a folder, the hub, a GGUF file, or the embedded pair."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from fsd_chat.engine.messages import ModelSource
from fsd_chat.models.embedded import embedded_folder
from fsd_chat.models.errors import ModelError as ModelError
from fsd_chat.models.template import end_of_turn_ids

Progress = Callable[[str, float | None], None]

EMBEDDED = {"smol": "target", "smol-draft": "draft"}
OVERFLOWING_IN_FLOAT16 = ("gemma2", "gemma3", "gemma3_text")
"""Families whose activations exceed what float16 can hold (transformers #39972, #36832)."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    model: PreTrainedModel
    tokenizer: Any
    name: str
    revision: str | None
    device: torch.device
    dtype: torch.dtype
    end_ids: frozenset[int]
    """Any of these ends a reply."""
    context: int
    vocabulary: int
    """Ids that are tokens; the model's rows may be padded beyond them."""


@dataclass(frozen=True)
class Files:
    """What transformers needs to be told to find a model."""

    where: str
    name: str
    options: dict[str, Any]


def load_model(source: ModelSource, progress: Progress) -> LoadedModel:
    """Load what `source` names onto its device. Raises ModelError in one line for people."""
    files = _locate(source, progress)
    with _told_plainly(source):
        progress(f"reading {files.name}", 0.1)
        config = AutoConfig.from_pretrained(files.where, **files.options)
        device = choose_device(source.device)
        dtype = choose_dtype(source.dtype, device, config.model_type)
        tokenizer = AutoTokenizer.from_pretrained(files.where, **files.options)
        progress(f"loading {files.name}", 0.3)
        model = AutoModelForCausalLM.from_pretrained(
            files.where, dtype=dtype, use_safetensors=_must_be_safe(files), **files.options
        )
        progress(f"moving {files.name} to {device}", 0.9)
        model.to(device)  # type: ignore[arg-type]
        model.eval()  # type: ignore[no-untyped-call]
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=files.name,
        revision=getattr(model.config, "_commit_hash", None) or source.revision,
        device=device,
        dtype=dtype,
        end_ids=end_ids(model, tokenizer),
        context=context_of(model),
        vocabulary=vocabulary_of(model, tokenizer),
    )


def _must_be_safe(files: Files) -> bool | None:
    """Weights are never unpickled; a GGUF file is no pickle and not in safetensors either."""
    return None if "gguf_file" in files.options else True


def _locate(source: ModelSource, progress: Progress) -> Files:
    location = source.location
    if location in EMBEDDED:
        folder = embedded_folder(EMBEDDED[location], progress)
        return Files(str(folder), location, {})
    path = Path(location).expanduser()
    options: dict[str, Any] = {"trust_remote_code": source.trust_remote_code}
    if path.suffix.lower() == ".gguf" and (path.exists() or path.is_absolute()):
        if not path.is_file():
            raise ModelError("not-found", f"there is no file {path}")
        return Files(str(path.parent), path.stem, {**options, "gguf_file": path.name})
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError("not-found", f"the folder {path} holds no model (no config.json)")
        return Files(str(path), path.resolve().name, options)
    if _looks_like_a_path(location):
        raise ModelError("not-found", f"there is no model at {path}")
    repository, _, file = location.partition(":")
    if source.revision:
        options["revision"] = source.revision
    if file:
        options["gguf_file"] = file
    return Files(repository, location.rpartition("/")[2], options)


def _looks_like_a_path(location: str) -> bool:
    """A hub id is `owner/name`, with `:file.gguf` after it for one file of the repository."""
    is_file = location.lower().endswith((".gguf", ".safetensors", ".bin", ".pt"))
    return (
        location.startswith((".", "~", os.sep))
        or location.count("/") > 1
        or (is_file and ":" not in location)
    )


@contextmanager
def _told_plainly(source: ModelSource) -> Iterator[None]:
    """Turns what libraries raise into one line that says what to do."""
    name = source.location
    try:
        yield
    except GatedRepoError as error:
        raise ModelError(
            "not-found",
            f"{name} is gated on the hub: accept its licence there and log in with `hf auth login`",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError("not-found", _not_found(name)) from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(
            "memory", f"there is not enough memory for {name}; choose a smaller model or --device"
        ) from error
    except SafetensorError as error:
        raise ModelError("not-found", f"the weights of {name} are damaged: {error}") from error
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(*_explained(name, error)) from error


def _not_found(name: str) -> str:
    return (
        f"{name} is neither a local folder or GGUF file nor a model that the hub gives; check the "
        "spelling, or the network if it has to be downloaded"
    )


def _explained(name: str, error: Exception) -> tuple[Any, str]:
    said = " ".join(str(error).split())
    if "trust_remote_code" in said:
        return "unsupported", (
            f"{name} needs code of its own to run; if you trust it, allow that for this model with "
            "--trust-remote-code or `trust_remote_code = true` in the configuration"
        )
    if "Unrecognized" in said or "AutoModelForCausalLM" in said or "does not recognize" in said:
        return "unsupported", f"{name} is no causal language model that transformers knows: {said}"
    if "safetensors" in said:
        return "unsupported", f"{name} has no safetensors weights, and nothing else is loaded"
    if "connect" in said or "is not a local folder" in said:
        return "not-found", _not_found(name)
    return "not-found", f"{name} cannot be loaded: {said[:300]}"


def choose_device(wanted: str | None) -> torch.device:
    """CUDA, then MPS, then the CPU, unless one is asked for; ModelError if that cannot be used."""
    if wanted is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError("unsupported", f"the device {wanted!r} cannot be used here") from error
    return device


def choose_dtype(wanted: str | None, device: torch.device, family: str) -> torch.dtype:
    """bfloat16 where the hardware computes in it, else float32, unless one is asked for."""
    if wanted is None:
        return torch.bfloat16 if _fast_in_bfloat16(device) else torch.float32
    if wanted not in DTYPES:
        raise ModelError("bad-request", f"the dtype is one of {', '.join(DTYPES)}, not {wanted!r}")
    if wanted == "float16" and family in OVERFLOWING_IN_FLOAT16:
        raise ModelError(
            "unsupported", f"{family} models overflow float16; use --dtype bfloat16 or float32"
        )
    return DTYPES[wanted]


def _fast_in_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return _cpu_has("_is_avx512_bf16_supported") or _cpu_has("_is_amx_tile_supported")
    return device.type == "mps"


def _cpu_has(question: str) -> bool:
    """torch asks the processor under private names, which may go away."""
    asked: Callable[[], bool] = getattr(torch.cpu, question, lambda: False)
    return asked()


def end_ids(model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """All that may end a reply: the generation config's list, the tokenizer's end token, and what
    the chat template puts after an assistant's words."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    found = {*ids, tokenizer.eos_token_id, *end_of_turn_ids(tokenizer)}
    return frozenset(id for id in found if id is not None)


def context_of(model: PreTrainedModel) -> int:
    """Tokens the model was made for; a model that states none is taken at 2048."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 2048


def vocabulary_of(model: PreTrainedModel, tokenizer: Any) -> int:
    highest: int = max(tokenizer.get_vocab().values(), default=-1)
    rows: int = model.config.get_text_config().vocab_size
    return min(highest + 1, rows)
