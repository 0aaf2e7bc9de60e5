"""The draft as training begins: layers of its target."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from fsd_chat.models.errors import ModelError
from fsd_chat.models.loading import LoadedModel
from fsd_chat.models.small_draft import Head, SmallDraft, save_parts


def chosen_layers(wanted: int | Sequence[int], count: int) -> tuple[int, ...]:
    """The layers of a target of `count` that a draft begins as: the ones named, or so many, evenly
    spread with the first and the last among them. Raises ModelError for layers it does not have."""
    if isinstance(wanted, int):
        if not 1 <= wanted < count:
            raise ModelError(
                "bad-request",
                f"a draft of {wanted} layers cannot be made from a target of {count}; --layers "
                f"takes 1 to {count - 1}, or the numbers of layers",
            )
        if wanted == 1:
            return (count - 1,)
        return tuple(round(i * (count - 1) / (wanted - 1)) for i in range(wanted))
    unknown = [layer for layer in wanted if not 0 <= layer < count]
    if unknown or not wanted:
        raise ModelError(
            "bad-request",
            f"--layers names layer {', '.join(map(str, unknown)) or 'none at all'}; the target "
            f"has layers 0 to {count - 1}",
        )
    return tuple(wanted)


def feature_levels(count: int) -> tuple[int, ...]:
    """Hidden states of a target of `count` layers that a draft reads: low, middle and last, as
    EAGLE-3 (Li et al. 2025, section 3.1)."""
    return tuple(sorted({max(1, count // 3), max(1, 2 * count // 3), count}))


def begin(
    target: PreTrainedModel, layers: Sequence[int], levels: Sequence[int], vocabulary: Tensor | None
) -> SmallDraft:
    """A draft of the target's own kind, with copies of `layers`, its embeddings and its head; the
    latter two stay as they are. Float32, on the target's device."""
    config = _config(target, layers)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32
    )
    given = target.state_dict()
    weights = {name: values for name, values in given.items() if ".layers." not in name}
    for new, old in enumerate(layers):
        weights |= {
            name.replace(f".layers.{old}.", f".layers.{new}.", 1): values
            for name, values in given.items()
            if f".layers.{old}." in name
        }
    model.load_state_dict(weights, strict=True)
    model.generation_config = target.generation_config
    draft = SmallDraft(model, levels, vocabulary)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    for shared in (model.get_input_embeddings(), head):
        shared.requires_grad_(False)
    return draft.to(target.device)


def begin_as(draft: SmallDraft, earlier: LoadedModel) -> None:
    """Give `draft` the weights of an earlier one, whatever ids the heads of both know. Raises
    ModelError unless both have the same layers and features."""
    own = dict(draft.named_parameters())
    if earlier.small is None:
        given = {f"model.{name}": values for name, values in earlier.model.named_parameters()}
    else:
        given = dict(earlier.small.named_parameters())
    shapes = {name: tuple(values.shape) for name, values in own.items()}
    levels = () if earlier.small is None else earlier.small.levels
    if levels != draft.levels or shapes != {n: tuple(v.shape) for n, v in given.items()}:
        raise ModelError(
            "bad-request",
            f"{earlier.name} is another kind of draft than the one to be made: it has "
            f"{earlier.model.config.get_text_config().num_hidden_layers} layers and "
            f"{len(levels) or 'no'} features; --start takes one of the same target, --layers and "
            "features",
        )
    with torch.no_grad():
        for name, values in own.items():
            if values.requires_grad:
                values.copy_(given[name])


def _config(target: PreTrainedModel, layers: Sequence[int]) -> Any:
    config = copy.deepcopy(target.config)
    text = config.get_text_config()
    text.num_hidden_layers = len(layers)
    kinds = getattr(text, "layer_types", None)
    if kinds:
        text.layer_types = [kinds[layer] for layer in layers]
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def check_head(target: PreTrainedModel) -> None:
    """Raises ModelError unless the target's rows are its head times its last hidden state, which is
    how its whole distributions are kept."""
    text = torch.arange(1, 9, device=target.device)[None]
    with torch.inference_mode():
        output = target(input_ids=text, output_hidden_states=True)
        head = Head(target, None).to(target.device)
        again = head(output.hidden_states[-1].to(head.weight.dtype)).float()
    logits = output.logits.float()
    if (again - logits).abs().max() > 0.02 * logits.abs().max().clamp_min(1):
        raise ModelError(
            "unsupported",
            f"a {type(target).__name__} does not make its logits from its last hidden state by "
            "its head alone, so its distributions cannot be kept; no draft can be distilled",
        )


def trainable(draft: SmallDraft) -> list[nn.Parameter]:
    return [one for one in draft.parameters() if one.requires_grad]


def save_draft(
    draft: SmallDraft, tokenizer: Any, target: str, folder: Path, dtype: torch.dtype
) -> None:
    """Write an ordinary model folder, and what only this program can use beside it."""
    model: Any = copy.deepcopy(draft.model)
    model.to(dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_parts(draft, target, folder)
