"""Tiny tokenizers and models, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


def byte_tokenizer(template: str | None = TEMPLATE, extra: tuple[str, ...] = ()) -> Any:
    """Every byte is a token, so that a character may take up to four."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*SPECIAL, *extra])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", chat_template=template
    )


def tiny_llama(vocabulary: int, seed: int = 0, context: int = 256) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            eos_token_id=[256, 3],
            tie_word_embeddings=False,
        )
    )


@pytest.fixture
def save_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a tiny model with a tokenizer and returns its folder."""

    def save(name: str, tokenizer: Any | None = None, **settings: Any) -> Path:
        tokenizer = tokenizer or byte_tokenizer()
        folder = tmp_path / name
        settings.setdefault("vocabulary", len(tokenizer))
        model = tiny_llama(**settings)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


GGUF_SHAPE: dict[str, Any] = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
}
GGUF_LAYERS = 6


def write_gguf(path: Path) -> Path:
    """A tiny Llama in the precisions of the embedded pair: four bits, eight for the embeddings."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(GGUF_LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(261)
    _add_tokenizer(writer)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int, kind: GGMLQuantizationType) -> None:
        values = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)

    four, eight, full = (GGMLQuantizationType[kind] for kind in ("Q4_1", "Q8_0", "F32"))
    add("token_embd", 261, 32, kind=eight)
    add("output_norm", 32, kind=full)
    for layer in range(GGUF_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}", 32, kind=full)
        shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32)}
        shapes |= {"attn_output": (32, 32), "ffn_gate": (64, 32), "ffn_up": (64, 32)}
        for name, shape in (*shapes.items(), ("ffn_down", (32, 64))):
            add(f"blk.{layer}.{name}", *shape, kind=four)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_shipped_draft(path: Path) -> Path:
    """What a draft of two layers does not share with the tiny GGUF, as the package ships it."""
    torch.manual_seed(8)
    config = LlamaConfig(**{**GGUF_SHAPE, "num_hidden_layers": 2})
    own = {
        name: weight.to(torch.bfloat16)
        for name, weight in LlamaForCausalLM(config).state_dict().items()
        if "embed" not in name and "head" not in name
    }
    own |= {"fuse.weight": torch.randn(32, 96).bfloat16(), "carry.weight": torch.eye(32).bfloat16()}
    own["vocabulary"] = torch.arange(0, 261, 2, dtype=torch.int32)
    save_file(own, path, {"format": "1", "levels": "2,4,6", "target": "tiny"})
    return path


def _add_tokenizer(writer: GGUFWriter) -> None:
    tokenizer = byte_tokenizer()
    names = [*tokenizer.convert_ids_to_tokens(range(260)), "hi"]
    control, normal = 3, 1
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(names)
    writer.add_token_types([control if name in SPECIAL else normal for name in names])
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(TEMPLATE)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
