"""A recurrent state cannot forget: such a model writes alone, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families.tiny import SPREAD, VOCABULARY, cached, generated, settings, some_text, tiny, written
from transformers import (
    JambaConfig,
    JambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.settings import Sampling
from fsd_chat.models.errors import ModelError

NEW = 16


def alone(**own: Any) -> dict[str, Any]:
    """Settings of a model without attention."""
    ends = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    return {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, **ends, **own}


def qwen3_next() -> PreTrainedModel:
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    linear |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    layers = settings(num_hidden_layers=4, head_dim=8, shared_expert_intermediate_size=16)
    return Qwen3NextForCausalLM(Qwen3NextConfig(**layers, **linear, **experts))


def jamba() -> PreTrainedModel:
    layers = {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    one_expert = {"num_experts": 1, "num_experts_per_tok": 1}
    return JambaForCausalLM(JambaConfig(**settings(mamba_d_state=4), **layers, **one_expert))


def recurrent_gemma() -> PreTrainedModel:
    layers = settings(head_dim=8, lru_width=32, attention_window_size=8, num_hidden_layers=3)
    return RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**layers))


RECURRENT: dict[str, Callable[[], PreTrainedModel]] = {
    "mamba": lambda: MambaForCausalLM(MambaConfig(**alone(state_size=4))),
    "mamba2": lambda: Mamba2ForCausalLM(
        Mamba2Config(**alone(state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=4))
    ),
    "jamba": jamba,
    "qwen3-next": qwen3_next,
    "recurrent-gemma": recurrent_gemma,
}


def spread(model: PreTrainedModel) -> PreTrainedModel:
    """Weights far enough apart that what has been read decides what is said."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.std() < SPREAD / 2:
                weight.mul_(SPREAD / weight.std().clamp_min(1e-3))
    return model.eval()


@pytest.mark.parametrize("penalty", [1.0, 1.3], ids=["plain", "penalised"])
@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrent_target_writes_alone_what_generate_writes(family: str, penalty: float) -> None:
    torch.manual_seed(7)
    target = spread(RECURRENT[family]())
    model, text = cached(target), some_text(9, seed=2)
    expected = generated(target, text, NEW, repetition_penalty=penalty)
    assert len(set(expected)) > 2, "a model that repeats itself proves nothing"

    rounds = written(
        model,
        ModelDrafter(cached(tiny("llama"))),
        text,
        NEW,
        sampling=Sampling(temperature=0.0, repetition_penalty=penalty),
    )

    assert not model.can_roll_back
    assert text[9:] == expected
    assert all(round.drafted == 0 for round in rounds)


def test_going_back_in_a_recurrent_target_begins_anew() -> None:
    torch.manual_seed(7)
    target = spread(qwen3_next())
    model, text = cached(target), some_text(9, seed=2)
    written(model, None, text, NEW)

    again = text[:6]
    model.rollback(5)
    written(model, None, again, NEW)

    assert again[6:] == generated(target, text[:6], NEW)


def test_a_model_that_keeps_its_state_to_itself_is_refused_by_name() -> None:
    config = RwkvConfig(**alone(attention_hidden_size=32, intermediate_size=64))
    with pytest.raises(
        ModelError, match=r"a RwkvForCausalLM does not keep .*another model"
    ) as told:
        cached(RwkvForCausalLM(config))
    assert told.value.kind == "unsupported"
    assert "\n" not in str(told.value)
