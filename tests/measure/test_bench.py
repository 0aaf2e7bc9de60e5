"""`fsd-chat bench` says of a pair what can be worked out of it otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from distill.conftest import save_target
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.measure.bench import Order, _with_bits, bench, questions
from fsd_chat.measure.cost import Costs, tokens_per_round
from fsd_chat.models.errors import ModelError
from fsd_chat.models.pair import load_pair


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("bench") / "target")


@pytest.fixture(scope="module")
def draft(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, a little off."""
    folder = tmp_path_factory.mktemp("bench") / "draft"
    model = AutoModelForCausalLM.from_pretrained(target)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * weight.std().nan_to_num(0) * torch.randn_like(weight))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(target).save_pretrained(folder)
    return folder


def order(target: Path, draft: Path) -> Order:
    sources = [
        ModelSource(location=str(one), device="cpu", dtype="float32") for one in (target, draft)
    ]
    pair = LoadPair(name="tiny", target=sources[0], draft=sources[1])
    return Order(pair=pair, conversations=6, prompts=4, thresholds=(0.7,), lookahead="2")


def test_a_draft_that_is_nearly_the_target(target: Path, draft: Path) -> None:
    asked = order(target, draft)
    found = bench(asked)
    assert found.overlap.conversations == 6
    later = found.later_turn
    assert later.new == 64
    assert 64 < later.cached <= 3000
    assert min(later.fresh_s, later.later_s) > 0
    assert later.ratio == later.later_s / later.fresh_s
    beside = found.bookkeeping
    assert 0 < beside.own_s < beside.large_s
    assert beside.bandwidth > 1e8
    assert 0 < beside.large_share < 1
    assert 0.7 < found.overlap.overlap < 1
    assert 0.7 < found.overlap.greedy < 1
    ways = {(way.name, way.temperature): way for way in found.ways}
    assert len(ways) == 6
    for temperature in (0.7, 0.0):
        alone, exact, fuzzy = (
            ways[name, temperature] for name in ("target only", "exact SD", "FSD, T 0.7")
        )
        assert (alone.tokens_per_round, alone.ratio, alone.acceptance) == (1, 1, None)
        assert 1.5 < exact.tokens_per_round < 3
        # Twice the draft, and the bonus; an answer may end within a round.
        assert exact.tokens_per_round < fuzzy.tokens_per_round <= 3
        assert fuzzy.acceptance == 1
        assert exact.fuzzy == 0
        assert fuzzy.fuzzy is not None
        assert fuzzy.fuzzy > 0
        for way in (alone, exact, fuzzy):
            assert 0 < way.outside < 1
            assert way.round_s > way.draft_s + way.verify_s
        assert 10 * alone.draft_s < exact.draft_s
    # What the target itself likes best, it finds likely; what is sampled, less.
    likeliest, sampled = (ways["target only", temperature].perplexity for temperature in (0, 0.7))
    assert 1 < likeliest < sampled


def test_a_draft_length_is_a_number_where_a_policy_cannot_be_used(target: Path) -> None:
    asked = order(target, target)
    assert asked.fixed == 2
    assert msgspec.structs.replace(asked, lookahead="adaptive").fixed == 1


def test_a_draft_that_is_the_target_agrees_always(target: Path) -> None:
    asked = order(target, target)
    found = bench(asked)
    assert found.overlap.overlap == pytest.approx(1, abs=1e-4)
    assert found.overlap.greedy == 1


def test_the_command_prints_tables_or_one_json_object(target: Path, draft: Path) -> None:
    command = [sys.executable, "-m", "fsd_chat", "bench", "--target", str(target)]
    command += ["--draft", str(draft), "--conversations", "2", "--prompts", "1"]
    command += ["-T", "0.1,0.4", "--lookahead", "2"]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["overlap"]["conversations"] == 2
    assert found["costs"]["target_s"].keys() >= {"1", "3"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    for said in (
        "overlap 0.",
        "one step of the draft",
        "target only",
        "exact SD",
        "FSD, T 0.1",
        "FSD, T 0.4",
    ):
        assert said in ended.stdout


def test_a_pair_without_a_draft_model_is_one_line(target: Path) -> None:
    command = [sys.executable, "-m", "fsd_chat", "bench", "--target", str(target)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "has no draft model to measure" in ended.stderr


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["-T", "0.1,often"], "-T: the threshold T must be a number from 0 up, not 'often'"),
        (["--lookahead", "0"], "--lookahead is 1 or more, not 0"),
        (
            ["--against", "none,llama"],
            "--against takes some of transformers, none, int8, int4, not 'llama'",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(options: list[str], what: str) -> None:
    command = [sys.executable, "-m", "fsd_chat", "bench", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode != 0
    assert what in ended.stderr
    assert "Traceback" not in ended.stderr


def test_there_are_enough_questions_and_none_twice() -> None:
    asked = questions()
    assert len(asked) == len(set(asked)) >= 200


def test_what_costs_predict() -> None:
    """Leviathan et al., section 3.3: γ = 2, α = 1/2, c = 1/10."""
    assert tokens_per_round([0.5, 0.5]) == 1.75
    costs = Costs(draft_s=0.1, target_s={1: 1.0, 3: 1.0})
    assert costs.ratio == pytest.approx(0.1)
    assert costs.speed_up([0.5, 0.5]) == pytest.approx(1.75 / 1.2)


def test_other_engines_and_other_bits_are_measured_beside(target: Path, draft: Path) -> None:
    asked = msgspec.structs.replace(
        order(target, draft), transformers=True, bits=("int8", "int4"), prompts=3
    )
    found = bench(asked)
    ways = {(way.name, way.temperature): way for way in found.ways}
    assert {name for name, _ in ways} == {
        "target only",
        "target only, int8",
        "target only, int4",
        "transformers",
        "transformers + draft",
        "exact SD",
        "FSD, T 0.7",
    }
    for temperature in (0.7, 0.0):
        peer, assisted = (
            ways[name, temperature] for name in ("transformers", "transformers + draft")
        )
        assert peer.tokens_per_round == 1
        assert 1.5 < (assisted.tokens_per_round or 0) <= 3
        assert peer.outside is None or peer.verify_s == 0
    # Greedy answers are the same, whoever writes them.
    likeliest = {
        name: ways[name, 0.0].perplexity
        for name in ("target only", "transformers", "transformers + draft", "exact SD")
    }
    assert max(likeliest.values()) == pytest.approx(min(likeliest.values()))
    assert 0 < found.divergences["int8"] < found.divergences["int4"] < 0.5


def test_weights_that_would_be_replaced_are_compared_with_nothing(target: Path) -> None:
    stored = load_pair(order(target, target).pair, lambda stage, done: None)
    assert stored.draft is not None
    otherwise = replace(stored.target, layers=None)
    before = {name: weight.clone() for name, weight in otherwise.model.named_parameters()}
    with pytest.raises(ModelError, match="runs on transformers' own layers"):
        _with_bits(replace(stored, target=otherwise), "int8")
    assert all(
        torch.equal(weight, before[name]) for name, weight in otherwise.model.named_parameters()
    )
