"""A draft made for its target: a few layers, a head of the likely ids, and the target's features.

As in EAGLE (Li et al. 2024), the draft reads beside every token what the target had in mind when it
chose that token: the outputs of some of its layers one position earlier. Where the target has not
been asked yet the draft's own last output stands in for them. A draft may also go without features.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from fsd_chat.models.errors import ModelError
from fsd_chat.models.layers import Norm, rms_norm
from fsd_chat.models.quantization import MakeProduct, QuantizedLinear

PARTS = "draft.safetensors"
"""Beside a draft's ordinary model files: what only its target's program can use."""
FORMAT = "1"
FLOOR = 20.0
"""An id that the head leaves out lies so many nats below the likeliest one: rows stay full, and
divergences finite."""


class SmallDraft(nn.Module):
    """`model` is a causal language model of the target's own kind, with few layers."""

    def __init__(
        self, model: PreTrainedModel, levels: Sequence[int], vocabulary: Tensor | None
    ) -> None:
        """levels: which of the target's hidden states it reads, the last being what the target's
        head reads; none for a draft that stands alone. vocabulary: ids its head knows [m]; None
        for all of them."""
        super().__init__()
        config = model.config.get_text_config()
        hidden = self.hidden = int(config.hidden_size)
        self.model = model
        self.levels = tuple(levels)
        self.fuse: nn.Module | None = None
        self.carry: nn.Module | None = None
        if self.levels:
            fuse = nn.Linear(hidden * len(self.levels), hidden, bias=False)
            carry = nn.Linear(hidden, hidden, bias=False)
            nn.init.zeros_(fuse.weight)
            nn.init.zeros_(carry.weight)
            self.fuse, self.carry = fuse, carry
        self.head = Head(model, vocabulary)
        self._even: Norm = _even

    def with_products(self, make: MakeProduct) -> SmallDraft:
        """This draft for writing alone, with what stands beside its layers multiplied by the
        products of `make`."""
        made = copy.copy(self)
        made._modules = dict(self._modules)
        ones = torch.ones(self.hidden, dtype=self.model.dtype, device=self.model.device)
        made._even = rms_norm(ones, torch.finfo(torch.float32).eps)
        for name in ("fuse", "carry"):
            linear = getattr(self, name)
            if isinstance(linear, nn.Linear):
                setattr(made, name, QuantizedLinear(linear, make))
        return made

    def of_target(self, features: Tensor) -> Tensor:
        """features [..., levels, hidden] of the target → what is added to the next token's
        embedding [..., hidden]."""
        assert self.fuse is not None
        # Layers differ in scale by orders of magnitude.
        fused: Tensor = self.fuse(self._even(features.to(self.model.dtype)).flatten(-2))
        return fused

    def of_itself(self, output: Tensor) -> Tensor:
        """The draft's own output [..., hidden] → what is added where the target's are unknown."""
        assert self.carry is not None
        carried: Tensor = self.carry(self._even(output))
        return carried

    def embed(self, tokens: Tensor, beside: Tensor | None) -> Tensor:
        """tokens [..., n], and what stands beside each [..., n, hidden] → what the layers read
        [..., n, hidden]."""
        embedded: Tensor = self.model.get_input_embeddings()(tokens)
        return embedded if beside is None else embedded + beside

    def read(self, tokens: Tensor, beside: Tensor | None, **options: Any) -> Tensor:
        """tokens [b, n], and what stands beside each [b, n, hidden] → outputs [b, n, hidden], the
        head's input. options: the model's own (cache, position_ids, attention_mask)."""
        embedded = self.embed(tokens, beside)
        output: Tensor = self.model.base_model(inputs_embeds=embedded, **options).last_hidden_state
        return output


def _even(x: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:])


class Head(nn.Module):
    """The rows of a model's head for some ids, kept apart so that a step reads only these."""

    def __init__(self, model: PreTrainedModel, vocabulary: Tensor | None) -> None:
        super().__init__()
        whole: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if whole is None:
            raise ModelError("unsupported", f"a {type(model).__name__} has no head of its own")
        config = model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.rows: int = whole.weight.shape[0]
        self.vocabulary: Tensor | None
        self.weight: Tensor
        self.bias: Tensor | None
        weight, bias = whole.weight.detach(), getattr(whole, "bias", None)
        if vocabulary is not None:
            weight = weight[vocabulary]
            bias = None if bias is None else bias.detach()[vocabulary]
        for name, values in (("vocabulary", vocabulary), ("weight", weight), ("bias", bias)):
            self.register_buffer(name, values, persistent=False)

    @property
    def known(self) -> tuple[Tensor, Tensor | None]:
        """Weight [m, hidden] and bias [m] of the known ids."""
        return self.weight, self.bias

    def forward(self, output: Tensor) -> Tensor:
        """[..., hidden] → logits of the known ids [..., m]."""
        logits = functional.linear(output, self.weight, self.bias)
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits

    def spread(self, logits: Tensor) -> Tensor:
        """logits of the known ids [n, m] → whole rows [n, rows]."""
        if self.vocabulary is None:
            return logits
        floor = logits.amax(dim=-1, keepdim=True) - FLOOR
        return floor.expand(-1, self.rows).scatter(-1, self.vocabulary.expand_as(logits), logits)


def save_parts(draft: SmallDraft, target: str, folder: Path) -> None:
    """Write what an ordinary program has no use for beside the model's files in `folder`."""
    parts = {
        name: values.detach().to(torch.bfloat16).contiguous()
        for name, values in draft.state_dict().items()
        if name.startswith(("fuse.", "carry."))
    }
    if draft.head.vocabulary is not None:
        parts["vocabulary"] = draft.head.vocabulary.to(torch.int32).contiguous()
    levels = ",".join(map(str, draft.levels))
    save_file(parts, folder / PARTS, {"format": FORMAT, "levels": levels, "target": target})


def load_parts(model: PreTrainedModel, folder: Path) -> SmallDraft | None:
    """The draft that `model`, loaded from `folder`, was saved as; None for an ordinary model.

    Raises ModelError for parts that do not belong to the model.
    """
    place = folder / PARTS
    if not place.is_file():
        return None
    try:
        with safe_open(place, framework="pt") as stored:
            about = stored.metadata() or {}
            parts = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if about.get("format") != FORMAT:
            raise _unsound(place, f"its format is {about.get('format')!r}, not {FORMAT!r}")
        levels = [int(level) for level in about["levels"].split(",") if level]
        vocabulary = parts.pop("vocabulary", None)
        if vocabulary is not None:
            vocabulary = vocabulary.long().to(model.device)
            _check_ids(place, vocabulary, model)
        draft = SmallDraft(model, levels, vocabulary)
        own = {name: values.to(model.dtype) for name, values in parts.items()}
        lacking = draft.load_state_dict(own, strict=False)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise _unsound(place, " ".join(str(error).split())[:200]) from error
    absent = [name for name in lacking.missing_keys if not name.startswith("model.")]
    if absent or lacking.unexpected_keys:
        raise _unsound(place, f"it lacks {absent}, and has no use for {lacking.unexpected_keys}")
    return draft.to(device=model.device, dtype=model.dtype).eval()


def _check_ids(place: Path, vocabulary: Tensor, model: PreTrainedModel) -> None:
    rows = model.config.get_text_config().vocab_size
    if not len(vocabulary) or vocabulary.min() < 0 or vocabulary.max() >= rows:
        raise _unsound(place, f"it names ids that are no rows of a head of {rows}")


def _unsound(place: Path, what: str) -> ModelError:
    return ModelError("not-found", f"{place} does not belong to the model beside it: {what}")
