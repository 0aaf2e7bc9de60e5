"""Our own layers say what transformers says with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families.tiny import (
    CONTEXT,
    VOCABULARY,
    accepted,
    assert_cached,
    generated,
    nearly,
    some_text,
    tiny,
    written,
)
from torch import nn
from transformers import PreTrainedModel

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.models.layers import ROOM, Layers, agree, layers_of
from fsd_chat.models.quantization import plain
from fsd_chat.models.static import StaticCachedModel

TURNED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "heads that share nothing": ("llama", {"num_key_value_heads": 4}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "llama 3's rotation": ("llama", {"rope_parameters": TURNED}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "qwen2, biases on queries, keys and values": ("qwen2", {}),
    "qwen3, norms on queries and keys": ("qwen3", {}),
}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def model_of(name: str) -> PreTrainedModel:
    family, own = KNOWN[name]
    model = tiny(family, **own)
    torch.manual_seed(2)
    with torch.no_grad():
        for part, weight in model.named_parameters():
            # As they begin, a norm or a bias that is forgotten would make no difference.
            if part.endswith("bias") or "norm" in part:
                weight.add_(0.3 * torch.randn_like(weight))
    return model


def layers(model: PreTrainedModel) -> Layers:
    found = layers_of(model, plain)
    assert found is not None
    return found


def over(model: PreTrainedModel, levels: tuple[int, ...] = ()) -> StaticCachedModel:
    return StaticCachedModel(model, layers(model), VOCABULARY, CONTEXT, levels)


@pytest.mark.parametrize("name", KNOWN)
def test_rows_and_hidden_states_are_transformers_own(name: str) -> None:
    model, text = model_of(name), some_text(40)
    with torch.inference_mode():
        expected = model(torch.tensor([text]), output_hidden_states=True)
    reader = over(model, levels=(0, 1, 2))
    rows = [
        reader.forward(torch.tensor(text[start:stop]), rows=stop - start)
        for start, stop in ((0, 10), (10, 11), (11, 15), (15, 16), (16, 40))
    ]
    torch.testing.assert_close(torch.cat(rows), expected.logits[0], **TOLERANCE)
    states = torch.stack([state[0] for state in expected.hidden_states], dim=1)
    torch.testing.assert_close(reader.features(0, 40), states, **TOLERANCE)
    assert agree(model, layers(model))


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_read_after_going_back_is_as_if_nothing_had_been_there(name: str) -> None:
    model, text = model_of(name), some_text(30)
    reader = over(model)
    reader.forward(torch.tensor(text), rows=1)
    reader.rollback(7)
    other = some_text(9, seed=5)
    rows = reader.forward(torch.tensor(other), rows=9)
    with torch.inference_mode():
        expected = model(torch.tensor([text[:7] + other])).logits[0, 7:]
    torch.testing.assert_close(rows, expected, **TOLERANCE)
    assert reader.length == 16
    with pytest.raises(ValueError, match="cannot roll a cache of 16 tokens back to 17"):
        reader.rollback(17)


def test_a_text_longer_than_the_first_buffer_goes_on_in_a_larger_one() -> None:
    model = tiny("llama", max_position_embeddings=4 * ROOM)
    text = some_text(2 * ROOM + 9)
    reader = StaticCachedModel(model, layers(model), VOCABULARY, 4 * ROOM)
    for start in range(0, len(text), ROOM // 2 + 3):
        row = reader.forward(torch.tensor(text[start : start + ROOM // 2 + 3]), rows=1)
    with torch.inference_mode():
        expected = model(torch.tensor([text])).logits[0, -1:]
    torch.testing.assert_close(row, expected, **TOLERANCE)


@pytest.mark.parametrize("name", KNOWN)
def test_greedy_decoding_with_a_draft_is_transformers_own(name: str) -> None:
    model = model_of(name)
    expected = generated(model, some_text(9), 40)
    reader, draft = over(model), over(nearly(model))
    text = some_text(9)
    rounds = written(reader, ModelDrafter(draft), text, 40)
    assert text[9:][:40] == expected
    assert 0.2 < accepted(rounds) <= 1
    assert_cached(reader, model, text)


def test_weights_are_shared_with_the_model_which_stays_whole() -> None:
    model, text = (
        model_of("qwen2, biases on queries, keys and values"),
        torch.tensor([some_text(9)]),
    )
    with torch.inference_mode():
        before = model(text).logits
        held = {name: weight.clone() for name, weight in model.state_dict().items()}
        layers(model)
        assert torch.equal(model(text).logits, before)
    attention: Any = model.base_model.layers[0].self_attn
    joined = attention.q_proj.weight.untyped_storage()
    assert attention.v_proj.weight.untyped_storage().data_ptr() == joined.data_ptr()
    rows = sum(one.out_features for one in (attention.q_proj, attention.k_proj, attention.v_proj))
    assert joined.nbytes() == rows * attention.q_proj.in_features * 4
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, held[name]), name


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("gemma2", {}),
        ("gemma3", {}),
        ("phi", {}),
        ("phi3", {}),
        ("smollm3", {}),
        ("gpt2", {}),
        ("lfm2", {}),
        ("mistral", {}),
        ("llama", {"hidden_act": "gelu"}),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        ),
    ],
)
def test_a_model_that_is_built_otherwise_stays_with_transformers(
    family: str, own: dict[str, Any]
) -> None:
    assert layers_of(tiny(family, **own), plain) is None


def test_weights_that_somebody_else_quantised_stay_with_transformers() -> None:
    class Quantised(nn.Linear):
        pass

    model: Any = tiny("llama")
    model.base_model.layers[1].mlp.down_proj = Quantised(64, 32, bias=False)
    assert layers_of(model, plain) is None


def test_layers_that_say_something_else_are_found_out() -> None:
    model, other = tiny("llama"), tiny("llama")
    with torch.no_grad():
        model.base_model.layers[1].post_attention_layernorm.weight.copy_(torch.linspace(-2, 2, 32))
    found = layers(model)
    assert agree(model, found)
    assert not agree(other, found)
