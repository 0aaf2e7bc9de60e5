"""The embedded pair's file, read as transformers reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models.conftest import GGUF_LAYERS, GGUF_SHAPE, write_shipped_draft
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_chat.models import conversion
from fsd_chat.models.conversion import convert, read_weights
from fsd_chat.models.small_draft import load_parts


def quiet(stage: str, fraction: float | None) -> None:
    pass


@pytest.fixture
def converted(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(conversion, "SHAPE", GGUF_SHAPE)
    monkeypatch.setattr(conversion, "TOKENS", {"eos_token_id": 256, "bos_token_id": None})
    monkeypatch.setattr(conversion, "HEADS", {"attn_q": 4, "attn_k": 2})
    monkeypatch.setattr(conversion, "DRAFT", write_shipped_draft(tmp_path / "shipped.safetensors"))
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


def test_the_draft_is_what_is_shipped_with_what_it_shares_with_the_target(
    converted: Path, tmp_path: Path
) -> None:
    target, model = (
        AutoModelForCausalLM.from_pretrained(converted / name) for name in ("target", "draft")
    )
    shipped = load_file(tmp_path / "shipped.safetensors")
    assert len(target.model.layers) == GGUF_LAYERS
    assert len(model.model.layers) == model.config.num_hidden_layers == 2
    own = model.state_dict()
    for name, weight in shipped.items():
        if name.startswith("model."):
            assert torch.equal(own[name], weight), name
    assert torch.equal(model.lm_head.weight, target.model.embed_tokens.weight)
    draft = load_parts(model, converted / "draft")
    assert draft is not None
    assert draft.fuse is not None
    assert draft.levels == (2, 4, 6)
    assert torch.equal(draft.fuse.weight, shipped["fuse.weight"])
    assert draft.head.vocabulary is not None
    assert draft.head.vocabulary.tolist() == list(range(0, 261, 2))


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
