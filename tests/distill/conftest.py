"""A tiny random target that writes conversations, and the command in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models.conftest import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS = 4


def save_target(folder: Path, template: bool = True) -> Path:
    """Sure of what it says, and what that is depends mostly on the last few tokens."""
    tokenizer = byte_tokenizer() if template else byte_tokenizer(template=None)
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.1,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(6)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("distill") / "target")


def command(target: Path | str, out: Path, *options: str) -> list[str]:
    start = [sys.executable, "-m", "fsd_chat", "distill"]
    return [*start, "--target", str(target), "--out", str(out), *options]


def distill(
    target: Path | str, out: Path, *options: str, patience: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run to its end."""
    return subprocess.run(
        command(target, out, *options), capture_output=True, text=True, timeout=patience
    )
