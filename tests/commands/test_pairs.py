from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fsd_chat.catalogue import PairChoice, catalogue
from fsd_chat.cli import main
from fsd_chat.commands import pairs as pairs_module
from fsd_chat.commands.machine import Machine, this_machine
from fsd_chat.commands.pairs import on_disk, row
from fsd_chat.engine.messages import ModelSource

GB = 10**9
LAPTOP = Machine(memory_bytes=16 * GB, gpu_bytes=None, bfloat16=False)
GPU = Machine(memory_bytes=16 * GB, gpu_bytes=24 * GB, bfloat16=True)


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("FSD_CHAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(pairs_module, "this_machine", lambda: LAPTOP)


def in_hub(folder: Path, repository: str, *names: str, index: dict[str, Any] | None = None) -> None:
    """Files of `repository` as a download leaves them."""
    home = folder / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / "abc"
    snapshot.mkdir(parents=True, exist_ok=True)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text("abc")
    for name in names:
        (snapshot / name).write_text("x")
    if index is not None:
        (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))


# --- the catalogue ------------------------------------------------------------------------------


def test_the_catalogue_holds_the_pairs_that_are_promised() -> None:
    found = {(pair.target, pair.draft) for pair in catalogue().values()}
    assert found >= {
        ("smol", "smol-draft"),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        ("google/gemma-2-9b-it", "google/gemma-2-2b-it"),
    }


def test_every_pair_of_the_catalogue_says_its_sizes_and_licence() -> None:
    for pair in catalogue().values():
        assert pair.target_bytes
        assert pair.draft_bytes
        assert pair.draft_bytes < pair.target_bytes
        assert pair.licence


# --- what fits ----------------------------------------------------------------------------------


def test_a_pair_fits_where_there_is_room_for_weights_and_caches() -> None:
    pair = PairChoice(name="x", target="t", draft="d", target_bytes=5 * GB, draft_bytes=GB)
    found = row(pair, LAPTOP)
    assert found.weights_bytes == 6 * GB
    # Twice, since a processor computes in float32.
    assert found.needs_bytes == int(14.4 * GB)
    assert found.fits


def test_the_memory_of_the_gpu_counts_where_there_is_one() -> None:
    pair = PairChoice(name="x", target="t", target_bytes=18 * GB)
    assert row(pair, GPU).fits
    assert row(pair, LAPTOP).fits is False


def test_a_pair_of_unknown_size_is_not_judged() -> None:
    pair = PairChoice(name="x", target="some/model", draft="prompt-lookup")
    assert row(pair, LAPTOP).fits is None


def test_weights_in_a_folder_are_weighed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    pair = PairChoice(name="x", target=str(tmp_path), draft="prompt-lookup")
    assert row(pair, LAPTOP).weights_bytes == 1000


def test_this_machine_has_memory() -> None:
    found = this_machine()
    assert found.memory_bytes is None or found.memory_bytes > 10**8


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.parametrize(
    ("said", "bytes_there"),
    [("echo 24576; echo 512", 24576 * 2**20), ("echo '[N/A]'", None), ("exit 9", None)],
)
def test_the_first_gpu_is_asked_for_its_memory(
    said: str, bytes_there: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    assert this_machine().gpu_bytes == bytes_there
    assert this_machine().bfloat16 == (bytes_there is not None)


# --- what is here -------------------------------------------------------------------------------


def test_the_embedded_pair_is_here_once_it_is_converted(tmp_path: Path) -> None:
    assert not on_disk(ModelSource(location="smol"))
    (tmp_path / "cache" / "smol-v4").mkdir(parents=True)
    assert on_disk(ModelSource(location="smol"))
    assert on_disk(ModelSource(location="smol-draft"))


def test_a_model_in_the_hubs_cache_is_here(tmp_path: Path) -> None:
    source = ModelSource(location="some/model")
    assert not on_disk(source)
    in_hub(tmp_path, "some/model", "config.json")
    assert not on_disk(source)
    in_hub(tmp_path, "some/model", "model.safetensors")
    assert on_disk(source)
    assert not on_disk(ModelSource(location="some/model", revision="other"))


def test_a_model_of_several_files_is_here_when_all_are(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    in_hub(tmp_path, "some/model", "model-1.safetensors", index=index)
    assert not on_disk(ModelSource(location="some/model"))
    in_hub(tmp_path, "some/model", "model-2.safetensors")
    assert on_disk(ModelSource(location="some/model"))


def test_one_file_of_a_repository_is_here_when_it_is(tmp_path: Path) -> None:
    in_hub(tmp_path, "some/model", "model.safetensors")
    assert not on_disk(ModelSource(location="some/model:q4.gguf"))
    in_hub(tmp_path, "some/model", "q4.gguf")
    assert on_disk(ModelSource(location="some/model:q4.gguf"))


@pytest.mark.parametrize("location", ["no/such/place", "a b", "-"])
def test_what_is_no_model_is_not_here(location: str) -> None:
    assert not on_disk(ModelSource(location=location))


# --- what is shown ------------------------------------------------------------------------------


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table_fits_the_terminal_and_names_every_pair(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["pairs"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(width)
    assert "› smol " in out
    for pair in catalogue().values():
        assert pair.name in out
        assert pair.target in out
        assert f"+ {pair.draft}" in out
    assert "16.0 GB of memory here" in out


def test_text_of_the_users_own_neither_acts_nor_breaks_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = '[pairs.own]\ntarget = "a/[/b]"\nnote = "[bold] \\u001b[2J"\n'
    (tmp_path / "config.toml").write_text(own)
    assert main(["pairs"]) == 0
    out = capsys.readouterr().out
    assert "a/[/b]" in out
    assert "[bold]" in out
    assert "\x1b" not in out


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pairs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["memory_bytes"] == 16 * GB
    smol = next(pair for pair in found["pairs"] if pair["name"] == "smol")
    assert smol["draft"] == "smol-draft"
    assert smol["fits"] is True
    assert smol["on_disk"] is False
