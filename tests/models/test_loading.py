"""A model is loaded, or one line says why not and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models.conftest import byte_tokenizer
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from fsd_chat.engine.messages import ModelSource
from fsd_chat.models import hardware
from fsd_chat.models.errors import ModelError
from fsd_chat.models.hardware import choose_device, choose_dtype
from fsd_chat.models.loading import context_of, end_ids, load_model

SaveModel = Callable[..., Path]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def quiet(stage: str, fraction: float | None) -> None:
    pass


def source(location: Path | str, **settings: object) -> ModelSource:
    return ModelSource(location=str(location), device="cpu", **settings)  # type: ignore[arg-type]


def refused(location: Path | str, **settings: object) -> ModelError:
    with pytest.raises(ModelError) as error:
        load_model(source(location, **settings), quiet)
    assert "\n" not in str(error.value)
    return error.value


def test_a_folder_is_loaded_with_all_that_can_end_a_reply(save_model: SaveModel) -> None:
    told: list[float] = []
    loaded = load_model(
        source(save_model("target")), lambda stage, fraction: told.append(fraction or 0.0)
    )
    end = byte_tokenizer().convert_tokens_to_ids("<|end|>")
    assert loaded.end_ids == {256, 3, end}
    assert (loaded.name, loaded.context, loaded.vocabulary) == ("target", 256, 260)
    assert not loaded.model.training
    assert told == sorted(told)


def test_rows_padded_beyond_the_tokenizer_are_no_vocabulary(save_model: SaveModel) -> None:
    assert load_model(source(save_model("padded", vocabulary=320)), quiet).vocabulary == 260


@pytest.mark.parametrize("where", ["/nowhere/at/all", "./nothing", "~/nothing.gguf", "x.gguf"])
def test_a_place_without_a_model_is_named(where: str) -> None:
    error = refused(where)
    assert error.kind == "not-found"
    assert "no model at" in str(error) or "no file" in str(error)


def test_a_folder_that_holds_something_else_is_named(tmp_path: Path) -> None:
    assert "holds no model" in str(refused(tmp_path))


def test_a_hub_id_that_cannot_be_had_says_so() -> None:
    error = refused("nobody/no-such-model")
    assert error.kind == "not-found"
    assert "nobody/no-such-model" in str(error)


def test_pickled_weights_are_not_loaded(save_model: SaveModel) -> None:
    folder = save_model("pickled")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    error = refused(folder)
    assert error.kind == "unsupported"
    assert "no safetensors weights" in str(error)
    assert "they can run code" in str(error)


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0nonsense"),
        ("model.safetensors", b""),
        ("config.json", b'{"model_type": '),
        ("tokenizer.json", b'{"version": '),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_damaged_file_is_told(save_model: SaveModel, part: str, content: bytes) -> None:
    folder = save_model("damaged")
    (folder / part).write_bytes(content)
    error = refused(folder)
    assert error.kind == "not-found"
    assert "damaged cannot be loaded from" in str(error)
    assert str(folder) in str(error)


def test_weights_cut_short_are_told(save_model: SaveModel) -> None:
    weights = save_model("short") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "short cannot be loaded" in str(refused(weights.parent))


def test_weights_that_are_missing_are_not_made_up(save_model: SaveModel) -> None:
    folder = save_model("partial")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "lack 1 of the model's weights, the first being model.layers.1.mlp.up_proj" in str(
        refused(folder)
    )


def test_one_of_two_gguf_files_has_to_be_named(tiny_gguf: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(tiny_gguf, tmp_path / name)
    assert "name one of its GGUF files (a.gguf, …)" in str(refused(tmp_path))


def test_a_gguf_file_is_loaded_alone_or_by_its_folder(tiny_gguf: Path) -> None:
    by_file, by_folder = (load_model(source(one), quiet) for one in (tiny_gguf, tiny_gguf.parent))
    assert (by_file.name, by_folder.name) == ("tiny", "tiny")
    assert by_file.end_ids == {256}
    assert (by_file.context, by_file.vocabulary) == (128, 261)
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        assert torch.equal(by_file.model(ids).logits, by_folder.model(ids).logits)


@pytest.mark.parametrize("content", [b"GGUF", b"", b"nonsense that is no GGUF at all"])
def test_a_damaged_gguf_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    assert "broken cannot be loaded" in str(refused(tmp_path / "broken.gguf"))


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    assert "is no GGUF file" in str(refused(tmp_path / "model.bin"))


def test_what_reads_in_both_directions_is_no_chat_model(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=260,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    error = refused(tmp_path)
    assert error.kind == "unsupported"
    assert "is no causal language model" in str(error)
    assert "BertForMaskedLM" in str(error)


@pytest.mark.parametrize("kind", ["t5", "bart", "vit"])
def test_other_kinds_of_models_are_no_chat_models(tmp_path: Path, kind: str) -> None:
    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    error = refused(tmp_path)
    assert error.kind == "unsupported"
    assert "is no causal language model" in str(error)


def test_a_folder_without_a_tokenizer_is_told(save_model: SaveModel) -> None:
    folder = save_model("mute")
    for file in folder.glob("token*"):
        file.unlink()
    assert "mute cannot be loaded" in str(refused(folder))


def test_weights_that_no_memory_holds_are_refused_before_they_are_read(
    save_model: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model("huge")
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(hardware, "memory_of", lambda device: size)
    load_model(source(folder, dtype="float32"), quiet)
    monkeypatch.setattr(hardware, "memory_of", lambda device: size - 1)
    load_model(source(folder, dtype="bfloat16"), quiet)
    error = refused(folder, dtype="float32")
    assert error.kind == "memory"
    assert "huge needs 0.0 GB for its weights and cpu has 0.0 GB" in str(error)


@pytest.mark.parametrize(
    "raised",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"
        ),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
    ],
)
def test_memory_that_runs_out_is_told(
    save_model: SaveModel, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise raised

    folder = save_model("large")
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", full)
    error = refused(folder)
    assert error.kind == "memory"
    assert "not enough memory for large" in str(error)


def test_nothing_is_printed_while_a_model_is_loaded(
    save_model: SaveModel, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save_model("quiet")
    capfd.readouterr()
    load_model(source(folder), quiet)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("llama", {"max_position_embeddings": 512}, 512),
        ("gpt2", {"n_positions": 128}, 128),
        ("mpt", {"max_seq_len": 64}, 64),
        ("mamba", {}, 2048),
        ("gemma3", {"text_config": {"max_position_embeddings": 96}}, 96),
    ],
)
def test_the_context_is_what_the_configuration_calls_it(
    kind: str, settings: dict[str, Any], expected: int
) -> None:
    model = SimpleNamespace(config=CONFIG_MAPPING[kind](**settings))
    assert context_of("any", model) == (expected, ())


def test_a_context_that_changes_how_positions_are_read_is_used_up_to_the_change() -> None:
    factors = [1.0] * 4
    config = CONFIG_MAPPING["phi3"](
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=4096,
        original_max_position_embeddings=64,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": factors,
            "long_factor": factors,
        },
    )
    context, notices = context_of("phi", SimpleNamespace(config=config))
    assert context == 64
    assert "phi is used up to 64 of its 4096 tokens" in notices[0]


@pytest.mark.parametrize(("configured", "found"), [(7, {7}), ([7, 9], {7, 9}), (None, set())])
def test_the_end_is_one_id_or_many_or_none(configured: object, found: set[int]) -> None:
    tokenizer = byte_tokenizer(template=None)
    tokenizer.eos_token = None
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=configured))
    assert end_ids(model, tokenizer) == found


def test_code_that_a_model_brings_is_not_run_unasked(save_model: SaveModel) -> None:
    folder = save_model("own-code")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "unheard-of"
    config["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('it ran')")
    error = refused(folder)
    assert error.kind == "unsupported"
    assert "--trust-remote-code" in str(error)


def test_code_that_a_model_brings_is_run_where_that_is_allowed(save_model: SaveModel) -> None:
    folder = save_model("trusted-code")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "theirs.Theirs"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "theirs.py").write_text(
        "from transformers import LlamaForCausalLM\n\nclass Theirs(LlamaForCausalLM):\n    pass\n"
    )
    loaded = load_model(source(folder, trust_remote_code=True), quiet)
    assert type(loaded.model).__name__ == "Theirs"
    assert type(load_model(source(folder), quiet).model).__name__ == "LlamaForCausalLM"


def test_a_kind_of_model_that_nobody_knows_is_told(save_model: SaveModel) -> None:
    folder = save_model("unknown")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "unheard-of"
    (folder / "config.json").write_text(json.dumps(config))
    assert "unheard-of" in str(refused(folder))


def test_a_device_that_is_not_there_is_told() -> None:
    for device in ("tpu:7", "cuda:99", "meta"):
        with pytest.raises(ModelError, match=f"'{device}' cannot be used here"):
            choose_device(device)


def test_float16_is_refused_where_it_overflows() -> None:
    cpu = torch.device("cpu")
    for family in ("gemma2", "gemma3", "gemma3_text"):
        with pytest.raises(ModelError, match="overflow float16"):
            choose_dtype("float16", cpu, family)
    assert choose_dtype("float16", cpu, "llama") is torch.float16
    with pytest.raises(ModelError, match="'int3'"):
        choose_dtype("int3", cpu, "llama")


@pytest.mark.parametrize(("fast", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_computes_in_bfloat16_only_where_that_is_fast(
    monkeypatch: pytest.MonkeyPatch, fast: bool, expected: torch.dtype
) -> None:
    for question in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, question, lambda: fast, raising=False)
    assert choose_dtype(None, torch.device("cpu"), "llama") is expected
