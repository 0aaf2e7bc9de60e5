"""Tiny tokenizers and models, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
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
