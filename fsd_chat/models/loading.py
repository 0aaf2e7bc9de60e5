"""Loading one model onto its device."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

from fsd_chat.engine.messages import ModelSource, Quantization
from fsd_chat.models.errors import ModelError as ModelError
from fsd_chat.models.hardware import check_room, choose_device, choose_dtype
from fsd_chat.models.hub import INDEX, WEIGHTS
from fsd_chat.models.layers import Layers, agree, layers_of, release
from fsd_chat.models.locating import EMBEDDED, Files, locate
from fsd_chat.models.progress import Progress, bars_told, part
from fsd_chat.models.quantization import (
    HEADS,
    LAYERS,
    int8,
    plain,
    quantize_in_place,
)
from fsd_chat.models.small_draft import SmallDraft, load_parts
from fsd_chat.models.template import end_of_turn_ids
from fsd_chat.models.vocabulary import usable

NOT_CAUSAL = ("ForMaskedLM", "Classification", "ForQuestionAnswering", "ForPreTraining")
"""Endings of architectures that transformers would load as causal models, with a head made up."""
FETCHED = 0.7
"""Part of the progress that is fetching, where there is anything to fetch."""


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
    notices: tuple[str, ...] = ()
    small: SmallDraft | None = None
    """What else there is of a draft that was made for its target."""
    layers: Layers | None = None
    """The model's layers, for one short text at a time; None where they are transformers' own."""
    quantization: Quantization = "none"
    """Of the weights that are used."""


def load_model(source: ModelSource, progress: Progress) -> LoadedModel:
    """Load what `source` names onto its device. Raises ModelError in one line for people."""
    device = choose_device(source.device)
    start = 0.0

    def fetching(stage: str, fraction: float | None) -> None:
        nonlocal start
        start = FETCHED
        part(progress, 0.0, FETCHED)(stage, fraction)

    files = locate(source, fetching)
    with _told_plainly(files):
        loaded = _load(files, source, device, part(progress, start, 1.0))
        if source.quantize != "none":
            progress(f"quantising {files.name}", 0.95)
            loaded = quantized(loaded, source.quantize)
            if loaded.layers is not None and loaded.quantization != "none":
                release(loaded.model)
    progress(f"{files.name} is loaded", 1.0)
    return loaded


def _load(
    files: Files, source: ModelSource, device: torch.device, progress: Progress
) -> LoadedModel:
    options = {**files.options, "trust_remote_code": source.trust_remote_code}
    progress(f"reading {files.name}", 0.0)
    config = AutoConfig.from_pretrained(files.folder, **options)
    _refuse_what_is_not_causal(files.name, config)
    _refuse_what_may_run_code(files)
    dtype = choose_dtype(source.dtype, device, config.model_type)
    check_room(files.name, _bytes(files, config, dtype), device)
    tokenizer = _tokenizer(files, options)
    stage = f"loading {files.name}"
    with bars_told(stage, part(progress, 0.1, 0.9)):
        model = _model(files, dtype, options)
    progress(stage if device.type == "cpu" else f"moving {files.name} to {device}", 0.9)
    model.to(device)  # type: ignore[arg-type]
    model.eval()  # type: ignore[no-untyped-call]
    context, notices = context_of(files.name, model)
    small = None if files.gguf else load_parts(model, files.folder)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=files.name,
        revision=files.revision or source.revision,
        device=device,
        dtype=dtype,
        end_ids=end_ids(model, tokenizer),
        context=context,
        vocabulary=usable(tokenizer, model.config.get_text_config().vocab_size),
        notices=notices,
        small=small,
        layers=own_layers(model, small),
    )


def own_layers(model: PreTrainedModel, small: SmallDraft | None) -> Layers | None:
    """Our own layers of `model`, where it is built so and they say what it says; for a draft made
    for its target with that one's head."""
    if model.device.type not in ("cpu", "cuda"):
        return None
    layers = layers_of(model, plain)
    if layers is None or not agree(model, layers):
        return None
    if small is not None:
        layers.head = plain(*small.head.known)
    return layers


def quantized(loaded: LoadedModel, quantization: Quantization) -> LoadedModel:
    """`loaded` on weights of few bits. Where its layers are our own its model stays as it was, and
    so does `loaded`; else its weights are replaced."""
    model, small = loaded.model, loaded.small
    if loaded.device.type != "cpu":
        notice = (
            f"{loaded.name} is not quantised to {quantization}: that works on the CPU only so far, "
            f"and it runs on {loaded.device}"
        )
        return replace(loaded, notices=(*loaded.notices, notice))
    if small is not None:
        loaded = replace(loaded, small=small.with_products(int8))
    if loaded.layers is None:
        quantize_in_place(model, quantization)
        return replace(loaded, quantization=quantization)
    own: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    known = (own.weight.data, own.bias) if small is None else small.head.known
    layers = layers_of(model, LAYERS[quantization], HEADS[quantization](*known))
    return replace(loaded, layers=layers, quantization=quantization)


def _tokenizer(files: Files, options: dict[str, Any]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(files.folder, **options)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ModelError(
            "unsupported",
            f"the tokenizer of {files.name} is none of the `tokenizers` library, which is needed "
            "to show text while it is written",
        )
    return tokenizer


def _model(files: Files, dtype: torch.dtype, options: dict[str, Any]) -> PreTrainedModel:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        files.folder,
        dtype=dtype,
        # A GGUF file is no pickle, and not in safetensors either.
        use_safetensors=True if files.gguf is None else None,
        output_loading_info=True,
        **options,
    )
    model: PreTrainedModel = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:
        raise ModelError(
            "not-found",
            f"the files of {files.name} lack {len(missing)} of the model's weights, the first "
            f"being {missing[0]}; they would be made up",
        )
    return model


def _refuse_what_is_not_causal(name: str, config: Any) -> None:
    made_for = config.architectures or []
    brings_its_own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    known = brings_its_own or type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if config.is_encoder_decoder or not known or any(one.endswith(NOT_CAUSAL) for one in made_for):
        raise ModelError(
            "unsupported",
            f"{name} is no causal language model that transformers knows, but "
            + (", ".join(made_for) or config.model_type),
        )


def _refuse_what_may_run_code(files: Files) -> None:
    """Weights are never unpickled."""
    if not files.gguf and not any((files.folder / name).is_file() for name in (WEIGHTS, INDEX)):
        raise ModelError(
            "unsupported",
            f"{files.name} has no safetensors weights in {files.folder}; others are not loaded, "
            "since they can run code",
        )


def _bytes(files: Files, config: Any, dtype: torch.dtype) -> int:
    """What the weights will take; 0 where the files do not tell, as with quantised ones."""
    stored = config.dtype
    if files.gguf or not isinstance(stored, torch.dtype) or hasattr(config, "quantization_config"):
        return 0
    index = files.folder / INDEX
    if index.is_file():
        size = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
    else:
        size = sum(file.stat().st_size for file in files.folder.glob("model*.safetensors"))
    return int(size or 0) * dtype.itemsize // stored.itemsize


@contextmanager
def _told_plainly(files: Files) -> Iterator[None]:
    """Turns what the libraries raise into one line that says what to do."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        # transformers, tokenizers and the rest share no class, and some raise bare exceptions.
        raise _explained(files, error) from error


def _explained(files: Files, error: Exception) -> ModelError:
    name, said = files.name, " ".join(str(error).split())
    # CUDA has a class for it, the other allocators only words.
    if isinstance(error, MemoryError) or re.search("out of memory|t allocate memory", said):
        return ModelError(
            "memory",
            f"there is not enough memory for {name}; choose a smaller model, another --device or "
            "a --dtype of fewer bytes",
        )
    if "trust_remote_code" in said:
        return ModelError(
            "unsupported",
            f"{name} needs code of its own to run; if you trust it, allow that for this model with "
            "--trust-remote-code or `trust_remote_code = true` in the configuration",
        )
    if name in EMBEDDED:
        said += f"; delete {files.folder.parent} to have it made anew"
    what = said[:300] or type(error).__name__
    return ModelError("not-found", f"{name} cannot be loaded from {files.folder}: {what}")


def end_ids(model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """All that may end a reply: the generation config's list, the tokenizer's end token, and what
    the chat template puts after an assistant's words."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    found = {*ids, tokenizer.eos_token_id, *end_of_turn_ids(tokenizer)}
    return frozenset(id for id in found if id is not None)


def context_of(name: str, model: PreTrainedModel) -> tuple[int, tuple[str, ...]]:
    """Tokens the model can hold, and what there is to say about it.

    A model that states none is taken at 2048. Some read every position differently once the text
    is longer than they were first trained for: what is cached until then would be wrong after.
    """
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    stated = [getattr(config, name, None) for name in names]
    context = next((value for value in stated if isinstance(value, int) and value > 0), 2048)
    rope = getattr(config, "rope_parameters", None) or {}
    short = rope.get("original_max_position_embeddings") or context
    if rope.get("rope_type") == "longrope" and short < context:
        return short, (
            f"{name} is used up to {short} of its {context} tokens: beyond, it reads positions "
            "anew and nothing could stay cached",
        )
    return context, ()
