"""A model is loaded, or one line says why not and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models.conftest import byte_tokenizer

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models.errors import ModelError
from fsd_chat.models.loading import choose_device, choose_dtype, load_model
from fsd_chat.models.pair import load_pair

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
    assert "safetensors" in str(error)


def test_damaged_weights_are_told(save_model: SaveModel) -> None:
    folder = save_model("damaged")
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
    assert "damaged" in str(refused(folder))


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


def test_a_kind_of_model_that_nobody_knows_is_told(save_model: SaveModel) -> None:
    folder = save_model("unknown")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "unheard-of"
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder).kind == "unsupported"


def test_a_device_that_is_not_there_is_told() -> None:
    with pytest.raises(ModelError, match="'tpu:7' cannot be used here"):
        choose_device("tpu:7")


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


def pair(target: Path, draft: Path | str | None) -> LoadPair:
    drafts = None if draft is None else source(draft)
    return LoadPair(name="pair", target=source(target), draft=drafts)


def test_a_pair_of_one_family_agrees_on_the_ids_both_have(save_model: SaveModel) -> None:
    loaded = load_pair(
        pair(save_model("target", vocabulary=320), save_model("draft", vocabulary=288)), quiet
    )
    assert loaded.draft is not None
    assert loaded.vocabulary == 260
    assert loaded.notices == ()


def test_a_draft_with_another_vocabulary_is_refused(save_model: SaveModel) -> None:
    other = byte_tokenizer(extra=("<extra>",))
    other.backend_tokenizer.model = type(other.backend_tokenizer.model)(
        {token: (id + 1) % 256 for token, id in byte_tokenizer().get_vocab().items() if id < 256},
        [],
    )
    with pytest.raises(ModelError) as error:
        load_pair(pair(save_model("target"), save_model("other", tokenizer=other)), quiet)
    assert error.value.kind == "vocabulary"
    assert "261 tokens against 260" in str(error.value)
    assert "token 0 is" in str(error.value)


def test_a_draft_with_a_shorter_context_is_used_and_told(save_model: SaveModel) -> None:
    loaded = load_pair(pair(save_model("target"), save_model("draft", context=64)), quiet)
    assert loaded.draft is not None
    assert "the draft holds 64 tokens and the target 256" in loaded.notices[0]


@pytest.mark.parametrize(
    ("draft", "lookup", "model"),
    [(None, False, False), ("prompt-lookup", True, False), ("prompt-lookup+", True, True)],
)
def test_what_drafts_can_be_a_model_a_lookup_or_both(
    save_model: SaveModel, draft: str | None, lookup: bool, model: bool
) -> None:
    folder = save_model("target")
    wanted = f"{draft}{folder}" if model else draft
    loaded = load_pair(pair(folder, wanted), quiet)
    assert (loaded.prompt_lookup, loaded.draft is not None) == (lookup, model)
