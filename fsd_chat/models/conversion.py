"""The embedded pair's GGUF file as two folders that load in a second.

transformers can read the file itself, but parses it three times over on the way. The file is known
to the last bit, so one reading and the few names below do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fsd_chat.models.small_draft import PARTS

Progress = Callable[[str, float | None], None]
Weights = dict[str, Tensor]

DRAFT = Path(__file__).with_name("smol_draft.safetensors")
"""What the embedded draft does not share with its target; `fsd_chat.distill.ship` writes it."""
SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
}
TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS: dict[str, int] = {
    "attn_q": SHAPE["num_attention_heads"],
    "attn_k": SHAPE["num_key_value_heads"],
}
LAYER = re.compile(r"model\.layers\.(\d+)\.")


def convert(gguf: Path, made: Path, progress: Progress) -> None:
    """Write the folders `target` and `draft` into `made`: bfloat16 safetensors and tokenizer."""
    from transformers import PreTrainedTokenizerFast

    progress("converting the embedded model's tokenizer", 0.5)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name)
    progress("converting the target", 0.7)
    weights = read_weights(gguf)
    progress("writing the target", 0.9)
    _save(weights, tokenizer, made / "target")
    progress("writing the draft", 0.95)
    put_together(weights, tokenizer, made / "draft")
    progress("the embedded model is ready", 1.0)


def read_weights(gguf: Path) -> Weights:
    """Every weight under the name that transformers' Llama gives it, in bfloat16: the file's own
    precision is four bits, so that is no loss worth its bytes."""
    weights = {}
    for tensor in GGUFReader(gguf).tensors:
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16)
        *layer, part, kind = tensor.name.split(".")
        if part in HEADS:
            values = _halves_apart(values, HEADS[part])
        place = f"model.layers.{layer[1]}." if layer else ""
        weights[f"{place}{NAMES[part]}.{kind}"] = values
    return weights


def _halves_apart(values: Tensor, heads: int) -> Tensor:
    """[heads × size, columns]: GGUF rotates neighbouring rows of a head together, transformers the
    first half of them with the second."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def put_together(target: Weights, tokenizer: Any, folder: Path) -> None:
    """Write the draft: its own weights as they are shipped, and what it shares with the target."""
    with safe_open(DRAFT, framework="pt") as shipped:
        about = shipped.metadata()
        own = {name: shipped.get_tensor(name) for name in shipped.keys()}  # noqa: SIM118
    shared = {
        name: values for name, values in target.items() if not name.startswith("model.layers")
    }
    model = {name: values for name, values in own.items() if name.startswith("model.")}
    _save({**shared, **model}, tokenizer, folder)
    parts = {name: values for name, values in own.items() if name not in model}
    save_file(parts, folder / PARTS, about)


def _save(weights: Weights, tokenizer: Any, folder: Path) -> None:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    layers = {int(layer[1]) for layer in map(LAYER.match, weights) if layer}
    with torch.device("meta"):
        # Weights that are about to be replaced need not be made up.
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=len(layers), **SHAPE, **TOKENS))
    model.load_state_dict(
        {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}, assign=True
    )
    model.tie_weights()
    model.generation_config = GenerationConfig(**TOKENS)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
