"""Small random models of every family, and what transformers itself says with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from fsd_chat.decoding.drafting import Drafter, ModelDrafter
from fsd_chat.decoding.lookahead import Fixed, Recorded
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.records import Round
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.models.cached import DynamicCachedModel

VOCABULARY = 99
CONTEXT = 256
WINDOW = 8
SPREAD = 0.2
"""Of the random weights; at the usual 0.02 a model repeats one token whatever it has read."""

Build = Callable[..., PreTrainedModel]


def settings(**own: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": SPREAD,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **own,
    }


def gemma2(**own: Any) -> PreTrainedModel:
    """Every other layer slides; scores and logits are soft-capped low enough to matter."""
    config = settings(
        head_dim=8,
        num_hidden_layers=4,
        sliding_window=WINDOW,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=6.0,
    )
    return Gemma2ForCausalLM(Gemma2Config(**{**config, **own}))


def gemma3(**own: Any) -> PreTrainedModel:
    """Sliding layers around one that sees everything, each kind with its own rotary base."""
    slides, sees_all = "sliding_attention", "full_attention"
    config = settings(
        head_dim=8,
        num_hidden_layers=4,
        sliding_window=WINDOW,
        query_pre_attn_scalar=8,
        layer_types=[slides, slides, sees_all, slides],
    )
    return Gemma3ForCausalLM(Gemma3TextConfig(**{**config, **own}))


def gpt2(**own: Any) -> PreTrainedModel:
    """Positions are embedded, so a wrong one is another model altogether."""
    config = {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": CONTEXT,
        "initializer_range": 2 * SPREAD,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return GPT2LMHeadModel(GPT2Config(**{**config, **own}))


def plain(model: type[PreTrainedModel], config: type[Any], **family: Any) -> Build:
    return lambda **own: model(config(**settings(**{**family, **own})))


FAMILIES: dict[str, Build] = {
    "llama": plain(LlamaForCausalLM, LlamaConfig),
    "qwen2": plain(Qwen2ForCausalLM, Qwen2Config),
    "qwen3": plain(Qwen3ForCausalLM, Qwen3Config, head_dim=8),
    "gemma2": gemma2,
    "gemma3": gemma3,
    "mistral": plain(MistralForCausalLM, MistralConfig, head_dim=8, sliding_window=WINDOW),
    # With less spread this one comes to repeat one token.
    "phi": plain(PhiForCausalLM, PhiConfig, num_key_value_heads=4, initializer_range=2 * SPREAD),
    "phi3": plain(Phi3ForCausalLM, Phi3Config),
    "smollm3": plain(SmolLM3ForCausalLM, SmolLM3Config, num_hidden_layers=4),
    "gpt2": gpt2,
    # A short convolution beside attention: a state, but one that can be taken back.
    "lfm2": plain(Lfm2ForCausalLM, Lfm2Config, layer_types=["conv", "full_attention"]),
}
SLIDING = ("gemma2", "gemma3", "mistral")


def tiny(family: str, seed: int = 1, **own: Any) -> PreTrainedModel:
    torch.manual_seed(seed)
    return FAMILIES[family](**own).eval()


def nearly(model: PreTrainedModel, noise: float = 0.06, seed: int = 5) -> PreTrainedModel:
    """A copy whose weights are a little off: a draft that is mostly right."""
    generator = torch.Generator().manual_seed(seed)
    twin: PreTrainedModel = copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            strength = noise * weight.std().nan_to_num(0)
            weight.add_(strength * torch.randn(weight.shape, generator=generator))
    return twin


def cached(model: PreTrainedModel, vocabulary: int = VOCABULARY, context: int = CONTEXT) -> Any:
    return DynamicCachedModel(model, vocabulary, context)


def some_text(length: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(1, vocabulary, (length,), generator=generator).tolist()
    return ids


def generated(model: PreTrainedModel, prompt: Sequence[int], new: int, **asked: Any) -> list[int]:
    """What `generate` says after `prompt`, greedily, to its end."""
    asked.setdefault("eos_token_id", None)
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        **asked,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


LENGTHS = (1, 2, 3, 4, 5)
"""Draft lengths that one reply goes through, again and again."""


def written(
    target: DynamicCachedModel,
    drafter: Drafter | None,
    committed: list[int],
    new: int,
    *,
    knob: Knob | None = None,
    sampling: Sampling | None = None,
    end_ids: Sequence[int] = (),
    draft_length: int | None = None,
    seed: int = 0,
) -> list[Round]:
    """Write a reply onto `committed` as the engine does, checking both caches after each round."""
    for _ in prefill(target, committed[:-1], chunk=16):
        pass
    lookahead = Recorded(LENGTHS * new) if draft_length is None else Fixed(draft_length)
    reply = Reply(
        LiveKnob(knob or Knob(rule="fsd", threshold=0.0)),
        sampling or Sampling(temperature=0.0),
        Stopping(frozenset(end_ids), new),
        seed,
        lookahead=lookahead,
    )
    rounds = []
    for round in decode(target, drafter, committed, reply):
        assert target.length == len(committed) - 1
        if isinstance(drafter, ModelDrafter):
            assert drafter.model.length <= len(committed) - 1
        rounds.append(round)
    return rounds


def accepted(rounds: Sequence[Round]) -> float:
    """Acceptance rate: accepted of verified."""
    return sum(round.accepted for round in rounds) / sum(round.verified for round in rounds)


def assert_cached(target: DynamicCachedModel, model: PreTrainedModel, text: list[int]) -> None:
    """What is in the cache is what reading `text` anew, but for its last token, would put there:
    the next row comes out the same."""
    rest = torch.tensor(text[target.length :])
    row = target.forward(rest, rows=1)[0]
    with torch.inference_mode():
        anew = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(row, anew[: row.shape[0]], rtol=1e-3, atol=1e-3)
    target.rollback(len(text) - 1)
