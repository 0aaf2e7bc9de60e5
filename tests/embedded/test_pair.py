"""The embedded pair as it is converted."""

from __future__ import annotations

import torch

from fsd_chat.engine.messages import Message
from fsd_chat.models.pair import Pair
from fsd_chat.models.template import render


def test_the_draft_is_the_target_without_three_layers(smol: Pair) -> None:
    assert smol.draft is not None
    target, draft = smol.target.model.state_dict(), smol.draft.model.state_dict()
    assert smol.target.model.config.num_hidden_layers == 30
    assert smol.draft.model.config.num_hidden_layers == 27
    kept = [layer for layer in range(30) if layer not in (4, 5, 17)]
    for number, layer in enumerate(kept):
        name = "mlp.down_proj.weight"
        ours = draft[f"model.layers.{number}.{name}"]
        assert torch.equal(ours, target[f"model.layers.{layer}.{name}"])
    assert torch.equal(draft["lm_head.weight"], target["model.embed_tokens.weight"])


def test_the_pair_ends_a_reply_where_its_template_does(smol: Pair) -> None:
    assert smol.target.end_ids == {2}
    assert (smol.vocabulary, smol.context) == (49152, 8192)
    assert smol.notices == ()


def test_the_draft_agrees_with_the_target_about_as_often_as_it_was_chosen_for(smol: Pair) -> None:
    """Overlap, the sum over min(P, Q), was 0.70 on the model's own conversations."""
    assert smol.draft is not None
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
    ids = torch.tensor([render(smol.target.tokenizer, text, plain=False)])
    with torch.inference_mode():
        p = smol.target.model(ids).logits[0, 36:].float().softmax(dim=-1)
        q = smol.draft.model(ids).logits[0, 36:].float().softmax(dim=-1)
    overlap = torch.minimum(p, q).sum(dim=-1).mean().item()
    assert 0.55 < overlap < 0.9
