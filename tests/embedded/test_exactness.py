"""The knob's zero is the target, token for token."""

from __future__ import annotations

import pytest
import torch

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.records import Round
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.engine.messages import Message
from fsd_chat.models.cached import DynamicCachedModel
from fsd_chat.models.pair import Pair
from fsd_chat.models.template import render

NEW_TOKENS = 128
PROMPTS = (
    "Write a python function that reverses a string.",
    "What is the capital of France, and what is it known for?",
    "Explain photosynthesis to a child.",
    "Give me a recipe for pancakes.",
    "Name three differences between cats and dogs.",
    "Write a short poem about the sea.",
    "How does a bicycle stay upright?",
    "Translate 'good morning' into French, Spanish and German.",
    "What is 12 times 13?",
    "Write an SQL query that counts the rows of a table.",
    "Tell me a story about a dragon who is afraid of fire.",
    "Why is the sky blue?",
    "List the planets of the solar system.",
    "Write an email asking for a day off.",
    "What should I pack for a week in the mountains?",
    "Explain what a hash table is.",
    "Who wrote Romeo and Juliet?",
    "Give me five names for a small bakery.",
    "How do I boil an egg?",
    "Summarise the idea of supply and demand.",
)


def reply_to(pair: Pair, prompt: list[int], knob: Knob, sampling: Sampling) -> list[Round]:
    target, draft = pair.cached()
    assert draft is not None
    committed = list(prompt)
    for model in (target, draft):
        for _ in prefill(model, prompt[:-1]):
            pass
    stopping = Stopping(pair.target.end_ids, NEW_TOKENS)
    reply = Reply(LiveKnob(knob), sampling, stopping, seed=5)
    return list(decode(target, ModelDrafter(draft), committed, reply))


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_greedy_at_threshold_zero_is_the_targets_own_greedy_decoding(
    smol: Pair, number: int
) -> None:
    prompt = render(
        smol.target.tokenizer, (Message(role="user", content=PROMPTS[number]),), plain=False
    )
    expected = smol.target.model.generate(  # type: ignore[operator]
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=sorted(smol.target.end_ids),
    )[0, len(prompt) :].tolist()

    lookahead = str(1 + number % 4)
    rounds = reply_to(
        smol,
        prompt,
        Knob(rule="fsd", threshold=0.0, lookahead=lookahead),
        Sampling(temperature=0.0),
    )

    assert [token.id for round in rounds for token in round.tokens] == expected
    assert any(round.accepted for round in rounds)


@pytest.mark.parametrize(("rule", "threshold"), [("exact", 0.0), ("fsd", 0.3), ("fsd-paper", 1e-4)])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_draft_that_is_the_target_is_always_accepted(
    smol: Pair, rule: str, threshold: float, temperature: float
) -> None:
    from dataclasses import replace

    twins = replace(smol, draft=smol.target)
    prompt = render(smol.target.tokenizer, (Message(role="user", content="Hi!"),), plain=False)
    sampling = Sampling(temperature=temperature, repetition_penalty=1.1)
    knob = Knob(rule=rule, threshold=threshold, lookahead="4")
    target = DynamicCachedModel(twins.target.model, twins.vocabulary, twins.context)
    draft = DynamicCachedModel(twins.target.model, twins.vocabulary, twins.context)
    for _ in prefill(target, prompt[:-1]):
        pass
    reply = Reply(LiveKnob(knob), sampling, Stopping(smol.target.end_ids, 24), seed=5)
    rounds = list(decode(target, ModelDrafter(draft), list(prompt), reply))

    drafted = [token for round in rounds for token in round.tokens if token.origin != "bonus"]
    assert drafted
    assert {token.origin for token in drafted} <= {"accepted", "fuzzy"}
