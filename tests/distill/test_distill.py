"""`fsd-chat distill` on a tiny random target: from nothing to a draft, through every trouble."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from distill.conftest import LAYERS, command, distill, save_target
from transformers import AutoModelForCausalLM, AutoTokenizer

from fsd_chat.distill.display import Display
from fsd_chat.distill.recipe import WORK, Order, Recipe, Workplace
from fsd_chat.distill.records import Shelf, Stored
from fsd_chat.distill.run import Distillation
from fsd_chat.distill.student import begin, feature_levels
from fsd_chat.distill.training import held_out
from fsd_chat.distill.writing import Writer
from fsd_chat.models import hardware
from fsd_chat.models.errors import ModelError
from fsd_chat.models.small_draft import load_parts

SMALL = ("--layers", "1", "--head", "0", "--batch", "32", "--dtype", "float32")
RAISED_BY = 0.1
"""Overlap that training adds at the least on the tiny target; measured: 0.2 and more."""


@pytest.fixture(scope="module")
def made(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "draft"
    ended = distill(target, out, "--tokens", "6000", "--passes", "8", *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert "held-out overlap" in ended.stderr
    return out


def test_overlap_on_what_was_held_out_rises(made: Path, target: Path) -> None:
    unseen = Stored(Shelf(made / WORK / "conversations").files, held_out=True)
    before = begin(
        AutoModelForCausalLM.from_pretrained(target), (LAYERS - 1,), feature_levels(LAYERS), None
    )
    after = load_parts(AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32), made)
    assert after is not None
    first, last = (held_out(one, unseen, 0.7, 2) for one in (before, after))
    assert first.positions == last.positions > 100
    assert last.overlap[0] > first.overlap[0] + RAISED_BY


def test_the_folder_is_an_ordinary_model_with_a_card(made: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(made)
    assert model.config.num_hidden_layers == 1
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert tokenizer.chat_template
    card = (made / "README.md").read_text(encoding="utf-8")
    for said in (
        "tokens, written by the target",
        "held out",
        "overlap",
        "greedy agreement",
        "speed-up",
        "ms a step",
    ):
        assert said in card
    assert Workplace(made).state.stage == "done"


def test_the_chat_runs_on_it(made: Path, target: Path) -> None:
    pair = ("--target", str(target), "--draft", str(made), "--lookahead", "2")
    ended = subprocess.run(
        [sys.executable, "-m", "fsd_chat", "run", "Hi", "--json", "--max-tokens", "12", *pair],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    counts = json.loads(ended.stdout)["statistics"]
    assert counts["draft_n"] > 0


def test_a_finished_draft_is_not_overwritten_and_goes_on_when_asked(
    made: Path, target: Path
) -> None:
    before = (made / "model.safetensors").read_bytes()
    refused = distill(target, made, "--tokens", "6000", "--passes", "8", *SMALL)
    assert refused.returncode == 1
    assert "finished draft, which is not overwritten" in refused.stderr
    assert (made / "model.safetensors").read_bytes() == before
    steps = Workplace(made).state.steps
    further = distill(target, made, "--tokens", "6000", "--passes", "9", "--further", *SMALL)
    assert further.returncode == 0, further.stderr
    assert Workplace(made).state.steps > steps


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_draft_may_begin_as_an_earlier_one(made: Path, target: Path, tmp_path: Path) -> None:
    ended = distill(
        target, tmp_path / "next", "--tokens", "1500", "--passes", "1", "--start", str(made), *SMALL
    )
    assert ended.returncode == 0, ended.stderr
    unseen = Stored(Shelf(tmp_path / "next" / WORK / "conversations").files, held_out=True)
    names = (tmp_path / "next", made)
    after, earlier = (
        load_parts(AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32), one)
        for one in names
    )
    afresh = begin(
        AutoModelForCausalLM.from_pretrained(target), (LAYERS - 1,), feature_levels(LAYERS), None
    )
    assert after is not None
    assert earlier is not None
    found, before, nothing = (
        held_out(one, unseen, 0.7, 1).overlap[0] for one in (after, earlier, afresh)
    )
    assert found > before - 0.02
    assert found > nothing + RAISED_BY
    assert f"It began as {made.name}" in (tmp_path / "next" / "README.md").read_text()


def test_an_earlier_draft_of_another_kind_is_refused(
    made: Path, target: Path, tmp_path: Path
) -> None:
    two = ("--layers", "2", *SMALL[2:])
    ended = distill(target, tmp_path / "d", "--tokens", "600", "--start", str(made), *two)
    assert ended.returncode == 1
    assert "is another kind of draft than the one to be made: it has 1 layers" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_where_it_was_interrupted(
    target: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "draft"
    options = ("--tokens", "3000", "--passes", "4000", *SMALL)
    process = subprocess.Popen(
        command(target, out, *options), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _until_training(out)
    kept = Shelf(out / WORK / "conversations").files
    if number == signal.SIGKILL:
        # The command and the process that does the work, as a machine that goes down would.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    else:
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "everything is kept" in said
        assert "Traceback" not in said
        assert Workplace(out).state.steps > 0
    assert not (out / "model.safetensors").exists()
    ended = distill(target, out, "--tokens", "3000", "--passes", "2", *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert (out / "model.safetensors").exists()
    assert Shelf(out / WORK / "conversations").files == kept


def _until_training(out: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if (out / WORK / "state.json").exists() and Workplace(out).state.tokens >= 3000:
            time.sleep(1)
            return
        time.sleep(0.1)
    raise AssertionError("it never came to training")


def test_conversations_cut_short_by_a_kill_are_kept(tmp_path: Path, target: Path) -> None:
    work = _distillation(target, tmp_path / "draft")
    shelf = Shelf(tmp_path / "shelf")
    writer = Writer(work._loaded.model, work._turns, (2, 4), work._style, 8, 0, None, (1.0, 0.7))
    begun = []
    while not begun:
        writer.step()
        begun = writer.begun
    shelf.add([], begun)
    assert shelf.files == []
    again = Shelf(tmp_path / "shelf")
    assert len(Stored(again.files)) == len(begun)


def _distillation(target: Path, out: Path, **asked: object) -> Distillation:
    recipe = Recipe(target=str(target), out=str(out), tokens=100, dtype="float32", **asked)  # type: ignore[arg-type]
    return Distillation(recipe, False, Display(None), lambda: False)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--layers", "0,9"), "names layer 9; the target has layers 0 to 3"),
        (("--layers", "4"), "a draft of 4 layers cannot be made from a target of 4"),
        (("--prompts", "nowhere.txt"), "nowhere.txt cannot be read: No such file"),
        (("--hours", "0"), "--hours is a number above 0"),
        (("--tokens", "0"), "--tokens is 1 or more"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    target: Path, tmp_path: Path, options: tuple[str, ...], what: str
) -> None:
    ended = distill(target, tmp_path / "draft", *options)
    assert ended.returncode == 1
    assert what in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "draft").exists()


def test_layers_that_are_no_numbers_are_bad_usage(target: Path, tmp_path: Path) -> None:
    ended = distill(target, tmp_path / "draft", "--layers", "first")
    assert ended.returncode == 2
    assert "'first' is neither 4 nor 0,1,2,29" in ended.stderr


def test_a_target_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    base = save_target(tmp_path / "base", template=False)
    with pytest.raises(ModelError, match="has no chat template"):
        _distillation(base, tmp_path / "draft")
    assert not (tmp_path / "draft").exists()


def test_a_folder_with_anything_else_in_it_is_left_alone(tmp_path: Path, target: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.txt").write_text("dear")
    with pytest.raises(ModelError, match="is not empty, and nothing is overwritten"):
        _distillation(target, tmp_path / "letters")
    assert [file.name for file in (tmp_path / "letters").iterdir()] == ["one.txt"]


def test_another_recipe_in_the_same_folder_is_refused(tmp_path: Path, target: Path) -> None:
    _distillation(target, tmp_path / "draft", layers=1)
    with pytest.raises(ModelError, match="was begun with --layers 1, not 2"):
        _distillation(target, tmp_path / "draft", layers=2)


def test_too_little_memory_is_said_before_anything_is_written(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_chat.distill.memory.memory_of", lambda device: 1_000_000)
    with pytest.raises(ModelError, match=r"needs about \d+\.\d GB .* has 0\.0 GB") as error:
        _distillation(target, tmp_path / "draft")
    assert error.value.kind == "memory"
    assert not (tmp_path / "draft").exists()
    assert hardware.memory_of(torch.device("cpu")) != 1_000_000


FULL = """
import sys
from fsd_chat.distill import __main__ as program
from fsd_chat.distill import records

def full(*given, **options):
    raise OSError(28, "No space left on device")

records.save_file = full
sys.exit(program.main())
"""


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, target: Path) -> None:
    out = tmp_path / "draft"
    order = Order(Recipe(target=str(target), out=str(out), tokens=500, layers=1, head=0, batch=16))
    ended = subprocess.run(
        [sys.executable, "-c", FULL, msgspec.json.encode(order).decode()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "is full; what was kept before is good" in ended.stderr
    assert "Traceback" not in ended.stderr
    ended = distill(target, out, "--tokens", "500", "--layers", "1", "--head", "0", "--batch", "16")
    assert ended.returncode == 0, ended.stderr


def test_the_answers_to_the_users_questions_are_what_is_learnt(
    tmp_path: Path, target: Path
) -> None:
    asked = [f"question number {i}" for i in range(30)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": one}) for one in asked))
    out = tmp_path / "draft"
    ended = distill(
        target, out, "--prompts", str(file), "--tokens", "4000", "--passes", "1", *SMALL
    )
    assert ended.returncode == 0, ended.stderr
    tokenizer = AutoTokenizer.from_pretrained(target)
    learnt = Stored(Shelf(out / WORK / "conversations").files, held_out=False)
    unseen = Stored(Shelf(out / WORK / "conversations").files, held_out=True)
    seen = {_question(tokenizer, one.tokens) for one in learnt}
    kept_back = {_question(tokenizer, one.tokens) for one in unseen}
    assert seen | kept_back <= set(asked)
    assert kept_back
    assert not seen & kept_back
    for one in learnt:
        assert set(one.written.tolist()) <= {0, 2}


def _question(tokenizer: object, tokens: torch.Tensor) -> str:
    text: str = tokenizer.decode(tokens.tolist())  # type: ignore[attr-defined]
    return text.partition("<|user|>")[2].partition("<|end|>")[0]
