"""The embedded pair as it is converted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.lookahead import Fixed
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.engine.messages import LoadPair, Message, ModelSource
from fsd_chat.models.cached_draft import StaticCachedDraft
from fsd_chat.models.conversion import DRAFT
from fsd_chat.models.pair import Pair, load_pair
from fsd_chat.models.static import StaticCachedModel
from fsd_chat.models.template import render

OVERLAP = 0.3
"""At the least, on the text below."""
PERPLEXITY = 120.0
"""Under the target, at the most, of replies in which every draft stays; measured: 32. Word salad
has hundreds, ids drawn blindly millions."""
QUESTIONS = (
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "What should I pack for a week in the mountains?",
)
LENGTH = 80


def test_the_draft_is_a_few_layers_under_the_targets_head(smol: Pair) -> None:
    assert smol.draft is not None
    assert smol.draft.small is not None
    target, draft = smol.target.model.state_dict(), smol.draft.model.state_dict()
    assert smol.target.model.config.num_hidden_layers == 30
    assert smol.draft.model.config.num_hidden_layers == 2
    assert smol.draft.small.levels == (10, 20, 30)
    assert torch.equal(draft["lm_head.weight"], target["model.embed_tokens.weight"])


def test_what_is_shipped_of_it_is_small() -> None:
    assert DRAFT.stat().st_size < 20_000_000


def test_the_pair_ends_a_reply_where_its_template_does(smol: Pair) -> None:
    assert smol.target.end_ids == {2}
    assert (smol.vocabulary, smol.context) == (49152, 8192)
    assert smol.notices == ()


def test_the_draft_agrees_with_the_target_as_it_was_trained_to(smol: Pair) -> None:
    """Overlap, the sum over min(P, Q), at temperature 0.7; `fsd-chat bench` measures it well."""
    target, draft = smol.cached()
    assert draft is not None
    text = (
        Message(role="user", content="Give me a recipe for pancakes."),
        Message(
            role="assistant",
            content="Here is a simple recipe for pancakes.\n\nIngredients:\n\n- 1 cup of flour\n"
            "- 2 tablespoons of sugar\n- 1 teaspoon of baking powder\n- 1 cup of milk\n- 1 egg\n\n"
            "Mix the flour, the sugar and the baking powder in a large bowl. Add the milk and the "
            "egg and stir until the batter is smooth.",
        ),
    )
    ids = torch.tensor(render(smol.target.tokenizer, text, plain=False))
    p = target.forward(ids, rows=len(ids) - 36)
    q = draft.forward(ids, rows=len(ids) - 36)
    p, q = ((rows.float() / 0.7).softmax(dim=-1) for rows in (p, q))
    overlap = torch.minimum(p, q).sum(dim=-1).mean().item()
    assert OVERLAP < overlap < 0.9


def test_a_reply_in_which_every_draft_stays_is_still_language(smol: Pair) -> None:
    lost, count = 0.0, 0
    for seed, question in enumerate(QUESTIONS):
        prompt = render(smol.target.tokenizer, (Message(role="user", content=question),), False)
        text = _reply(smol, prompt, seed)
        with torch.inference_mode():
            rows = smol.target.model(torch.tensor([text])).logits[0, len(prompt) - 1 : -1].float()
        said = torch.tensor(text[len(prompt) :])
        lost -= float(rows.log_softmax(dim=-1).gather(1, said[:, None]).sum())
        count += len(said)
    assert count > 100
    assert math.exp(lost / count) < PERPLEXITY


def _reply(pair: Pair, prompt: list[int], seed: int) -> list[int]:
    """With T at its bound: all that is drafted is accepted."""
    target, draft = pair.cached()
    assert draft is not None
    for model in (target, draft):
        for _ in prefill(model, prompt[:-1]):
            pass
    reply = Reply(
        LiveKnob(Knob(rule="fsd", threshold=math.log(2))),
        Sampling(temperature=0.7),
        Stopping(pair.target.end_ids, LENGTH),
        seed=seed,
        lookahead=Fixed(3),
    )
    text = list(prompt)
    for round in decode(target, ModelDrafter(draft), text, reply):
        assert "recovered" not in {token.origin for token in round.tokens}
    return text


@pytest.mark.parametrize("quantize", ["none", "int4"])
def test_the_chat_runs_on_our_own_layers(quantize: Any) -> None:
    """As it is loaded when nobody says otherwise: in bfloat16 where the machine has that."""
    sources = [
        ModelSource(location=one, device="cpu", dtype="bfloat16", quantize=quantize)
        for one in ("smol", "smol-draft")
    ]
    pair = load_pair(LoadPair(name="smol", target=sources[0], draft=sources[1]), lambda *told: None)
    assert pair.draft is not None
    for one in (pair.target, pair.draft):
        assert one.layers is not None
        assert one.quantization == quantize
        inner: Any = one.model.base_model
        assert (inner.layers[0].mlp.up_proj.weight.numel() == 0) == (quantize != "none")
    assert [type(one) for one in pair.cached()] == [StaticCachedModel, StaticCachedDraft]
