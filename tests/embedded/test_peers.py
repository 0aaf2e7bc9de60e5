"""In transformers' own loop the embedded draft drafts what it drafts in ours."""

from __future__ import annotations

import pytest

from fsd_chat.decoding.settings import Knob, Sampling
from fsd_chat.engine.messages import Message
from fsd_chat.measure.peers import Transformers
from fsd_chat.measure.speed import Ours
from fsd_chat.models.pair import Pair
from fsd_chat.models.template import render


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_greedy_answers_take_the_same_tokens_and_rounds(smol: Pair, drafts: int) -> None:
    question = Message(role="user", content="Write a python function that reverses a string.")
    prompt = render(smol.target.tokenizer, [question], plain=False)
    greedy = Sampling(temperature=0.0)
    target, draft = smol.cached()
    knob = Knob(rule="exact", lookahead=str(drafts))

    ours = Ours(target, draft, knob, greedy, smol.target.end_ids)(prompt, seed=1)
    theirs = Transformers(smol, greedy, drafts)(prompt, seed=1)
    alone = Transformers(smol, greedy)(prompt, seed=1)

    assert ours.tokens == theirs.tokens == alone.tokens
    # Before its first round theirs lets the target read the prompt and say one token.
    assert abs(ours.rounds.count - theirs.rounds.count) <= 1
    assert theirs.rounds.count < 0.8 * alone.rounds.count
    assert alone.counted == alone.rounds.count == len(alone.tokens) - 1


def test_sampled_answers_take_about_as_many_rounds(smol: Pair) -> None:
    sampling = Sampling(temperature=0.7)
    target, draft = smol.cached()
    ours = Ours(target, draft, Knob(rule="exact", lookahead="2"), sampling, smol.target.end_ids)
    theirs = Transformers(smol, sampling, 2)
    lengths = []
    for write in (ours, theirs):
        tokens = rounds = 0
        for seed in range(4):
            question = Message(role="user", content="Tell me a story about a lighthouse.")
            found = write(render(smol.target.tokenizer, [question], plain=False), seed)
            tokens, rounds = tokens + found.counted, rounds + found.rounds.count
        lengths.append(tokens / rounds)
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)
    assert min(lengths) > 1.2
