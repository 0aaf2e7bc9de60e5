"""The embedded pair's file, read as transformers reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models.conftest import GGUF_LAYERS, GGUF_SHAPE
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_chat.models import conversion
from fsd_chat.models.conversion import convert, read_weights, without_layers


def quiet(stage: str, fraction: float | None) -> None:
    pass


@pytest.fixture
def converted(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(conversion, "SHAPE", GGUF_SHAPE)
    monkeypatch.setattr(conversion, "TOKENS", {"eos_token_id": 256, "bos_token_id": None})
    monkeypatch.setattr(conversion, "HEADS", {"attn_q": 4, "attn_k": 2})
    convert(tiny_gguf, tmp_path / "made", quiet)
    return tmp_path / "made"


def test_the_weights_are_those_that_transformers_reads(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "HEADS", {"attn_q": 4, "attn_k": 2})
    theirs = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    expected = theirs.to(torch.bfloat16).state_dict()
    found = read_weights(tiny_gguf)
    assert found.keys() == expected.keys() - {"lm_head.weight"}
    for name, weight in found.items():
        assert torch.equal(weight, expected[name]), name


def test_the_target_says_what_the_file_says(converted: Path, tiny_gguf: Path) -> None:
    text = torch.arange(1, 30)[None]
    ours = AutoModelForCausalLM.from_pretrained(converted / "target", dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    # Only the weights are rounded, not the positions.
    theirs.load_state_dict({name: w.bfloat16().float() for name, w in theirs.state_dict().items()})
    with torch.inference_mode():
        torch.testing.assert_close(ours(text).logits, theirs(text).logits)
    assert ours.generation_config.eos_token_id == 256


def test_the_draft_is_the_target_without_the_layers_that_matter_least(converted: Path) -> None:
    target, draft = (
        AutoModelForCausalLM.from_pretrained(converted / name) for name in ("target", "draft")
    )
    kept = [target.model.layers[layer] for layer in (0, 1, 2, 3)]
    assert len(target.model.layers) == GGUF_LAYERS
    assert len(draft.model.layers) == draft.config.num_hidden_layers == len(kept)
    for ours, theirs in zip(draft.model.layers, kept, strict=True):
        for name, weight in ours.state_dict().items():
            assert torch.equal(weight, theirs.state_dict()[name])
    assert torch.equal(draft.lm_head.weight, target.model.embed_tokens.weight)


def test_weights_are_kept_once_and_in_half_the_space(converted: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(converted / "target")
    assert target.dtype == torch.bfloat16
    parameters = sum(weight.numel() for weight in target.parameters())
    assert (converted / "target" / "model.safetensors").stat().st_size < 2 * parameters + 10_000


def test_both_folders_hold_the_tokenizer_and_its_template(converted: Path) -> None:
    for name in ("target", "draft"):
        tokenizer = AutoTokenizer.from_pretrained(converted / name)
        turns = [{"role": "user", "content": "hé 😀"}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert text == "<|user|>hé 😀<|end|><|assistant|>"
        ids = tokenizer(text).input_ids
        assert ids[0] == 257
        assert tokenizer.decode(ids) == text
        assert tokenizer.eos_token == "<|end|>"


def test_the_layers_that_stay_are_numbered_anew() -> None:
    weights = {f"model.layers.{i}.mlp": torch.tensor(i) for i in range(12)}
    weights["model.norm"] = torch.tensor(-1)
    kept = without_layers(weights, (0, 4, 11))
    names = ["model.norm", *(f"model.layers.{i}.mlp" for i in range(9))]
    assert sorted(kept) == sorted(names)
    assert [int(kept[f"model.layers.{i}.mlp"]) for i in range(9)] == [1, 2, 3, 5, 6, 7, 8, 9, 10]
