"""What is recorded of a conversation is what the target says along it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from distill.conftest import LAYERS
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from fsd_chat.distill.attention import share_heads, share_no_heads
from fsd_chat.distill.records import Conversation, Shelf, Stored
from fsd_chat.distill.rolling import ROOM
from fsd_chat.distill.turns import Turns, turns_of
from fsd_chat.distill.writing import Kind, Style, Writer

LEVELS = (1, 2, LAYERS)
TEMPERATURES = (1.0, 0.7)
STYLE = Style(question_tokens=12, kinds=(Kind(1, 20), Kind(1, 8), Kind(2, 20)))


@pytest.fixture(scope="module")
def model(target: Path) -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="module")
def turns(target: Path) -> Turns:
    tokenizer = AutoTokenizer.from_pretrained(target)
    return turns_of(tokenizer, "tiny", frozenset({tokenizer.eos_token_id}))


def some(writer: Writer, count: int) -> list[Conversation]:
    found: list[Conversation] = []
    for one in writer:
        found.append(one)
        if len(found) == count:
            break
    return found


@pytest.fixture(scope="module")
def written(model: PreTrainedModel, turns: Turns) -> list[Conversation]:
    """Enough for the cache to be cut at its old end, and for rows to be begun anew."""
    share_heads(model)
    try:
        return some(Writer(model, turns, LEVELS, STYLE, 5, 1, None, TEMPERATURES), 60)
    finally:
        share_no_heads(model)


def test_features_and_partitions_are_the_targets_own(
    model: PreTrainedModel, written: list[Conversation]
) -> None:
    assert sum(len(one.tokens) for one in written) > 5 * 3 * ROOM
    for one in written:
        with torch.inference_mode():
            output = model(one.tokens.long()[None], output_hidden_states=True)
        states = torch.stack([output.hidden_states[level][0] for level in LEVELS], dim=1)
        torch.testing.assert_close(one.features.float(), states, rtol=2e-3, atol=2e-3)
        for i, temperature in enumerate(TEMPERATURES):
            expected = (output.logits[0] / temperature).logsumexp(dim=-1)
            torch.testing.assert_close(one.log_partition[:, i], expected, rtol=1e-4, atol=1e-4)


def test_every_part_is_written_by_whom_it_says(written: list[Conversation], turns: Turns) -> None:
    two = 0
    for one in written:
        tokens = one.tokens.tolist()
        start = len(turns.opening)
        assert tuple(tokens[:start]) == turns.opening
        assert one.written[start - 1] == 1
        asks = _runs(one.written.tolist())
        two += asks.count(2) == 2
        assert asks.count(2) in (1, 2)
        answers = (one.written == 2).nonzero()[:, 0]
        first = int(answers[0])
        length = len(turns.to_assistant)
        assert tuple(tokens[first - length + 1 : first + 1]) == turns.to_assistant
        assert len(answers) <= 2 * (20 + 1)
    assert two


def _runs(written: Sequence[int]) -> list[int]:
    """Who speaks, in turn."""
    return [now for before, now in zip([0, *written], written, strict=False) if now != before]


def test_at_temperature_zero_it_answers_as_the_target_does(
    model: PreTrainedModel, turns: Turns
) -> None:
    asked = [[10, 11, 12], [40, 41], [7, 8, 9, 10]]
    style = Style(temperatures=(0.0,), kinds=(Kind(1, 16),))

    def ids() -> Iterator[list[int]]:
        yield from asked

    found = list(Writer(model, turns, (LAYERS,), style, 2, 0, ids()))
    assert len(found) == 3
    for one in found:
        tokens = one.tokens.tolist()
        count = int((one.written == 2).sum())
        prompt, answer = tokens[: len(tokens) - count + 1], tokens[len(tokens) - count + 1 :]
        question = prompt[len(turns.opening) : len(prompt) - len(turns.to_assistant)]
        assert question in asked
        expected = model.generate(  # type: ignore[operator]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=len(answer),
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        assert answer == expected[: len(answer)]


def test_the_same_seed_writes_the_same(model: PreTrainedModel, turns: Turns) -> None:
    first, second, other = (
        some(Writer(model, turns, LEVELS, STYLE, 4, seed), 6) for seed in (3, 3, 4)
    )
    assert [one.tokens.tolist() for one in first] == [one.tokens.tolist() for one in second]
    assert [one.tokens.tolist() for one in first] != [one.tokens.tolist() for one in other]


def test_what_is_stored_comes_back(tmp_path: Path, written: list[Conversation]) -> None:
    shelf = Shelf(tmp_path)
    shelf.add(written[:40])
    shelf.add(written[40:])
    everything = Stored(shelf.files)
    assert everything.lengths == [len(one.tokens) for one in written]
    for ours, theirs in zip(everything, written, strict=True):
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.features, theirs.features)
        assert torch.equal(ours.log_partition, theirs.log_partition)
    learnt, unseen = Stored(shelf.files, held_out=False), Stored(shelf.files, held_out=True)
    assert len(learnt) + len(unseen) == len(written)
    assert len(learnt) > len(unseen) > 0
