"""A target and what drafts for it are loaded together, or it is said why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models.conftest import byte_tokenizer
from transformers import FalconH1Config, FalconH1ForCausalLM

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models.errors import ModelError
from fsd_chat.models.pair import Pair, load_pair

SaveModel = Callable[..., Path]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def quiet(stage: str, fraction: float | None) -> None:
    pass


def source(location: Path | str, **settings: Any) -> ModelSource:
    return ModelSource(location=str(location), device="cpu", **settings)


@pytest.fixture
def recurrent(tmp_path: Path) -> Path:
    """A model that keeps a state beside its attention."""
    folder = tmp_path / "recurrent"
    config = FalconH1Config(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        mamba_d_state=8,
        mamba_d_head=8,
        mamba_n_heads=8,
        mamba_d_ssm=64,
        mamba_chunk_size=4,
        head_dim=8,
    )
    FalconH1ForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def loaded(target: Path, draft: Path | str | None) -> Pair:
    return load_pair(pair(target, draft), quiet)


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


def test_the_target_is_loaded_before_the_draft_and_progress_never_goes_back(
    save_model: SaveModel,
) -> None:
    told: list[tuple[str, float]] = []
    load_pair(
        pair(save_model("target"), save_model("draft")),
        lambda stage, fraction: told.append((stage, -1.0 if fraction is None else fraction)),
    )
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert (told[0][1], told[-1][1]) == (0.0, 1.0)
    assert all(fraction <= 0.5 for stage, fraction in told if "target" in stage)
    assert all(fraction >= 0.5 for stage, fraction in told if "draft" in stage)


def test_a_target_alone_takes_the_whole_progress(save_model: SaveModel) -> None:
    told: list[float | None] = []
    load_pair(pair(save_model("target"), None), lambda stage, fraction: told.append(fraction))
    assert told[-1] == 1.0


def test_a_model_that_drafts_for_itself_is_loaded_once(save_model: SaveModel) -> None:
    folder = save_model("both")
    twins = loaded(folder, folder)
    assert twins.draft is twins.target


def test_a_draft_in_another_dtype_is_another_model(save_model: SaveModel) -> None:
    folder = save_model("both")
    command = LoadPair(
        name="pair",
        target=source(folder, dtype="float32"),
        draft=source(folder, dtype="bfloat16"),
    )
    both = load_pair(command, quiet)
    assert both.draft is not None
    assert (both.target.model.dtype, both.draft.model.dtype) == (torch.float32, torch.bfloat16)


def test_a_recurrent_draft_is_left_out_and_it_is_said_why(
    save_model: SaveModel, recurrent: Path
) -> None:
    alone = loaded(save_model("target"), recurrent)
    assert (alone.draft, alone.prompt_lookup) == (None, False)
    (notice,) = alone.notices
    assert "the draft recurrent keeps a recurrent state" in notice
    assert "the target writes alone" in notice


def test_without_a_recurrent_draft_copying_goes_on(save_model: SaveModel, recurrent: Path) -> None:
    copying = loaded(save_model("target"), f"prompt-lookup+{recurrent}")
    assert (copying.draft, copying.prompt_lookup) == (None, True)
    assert "drafts are only copied" in copying.notices[0]


@pytest.mark.parametrize("draft", ["prompt-lookup", "draft"])
def test_for_a_recurrent_target_nothing_is_drafted(
    save_model: SaveModel, recurrent: Path, draft: str
) -> None:
    alone = loaded(recurrent, save_model("draft") if draft == "draft" else draft)
    assert (alone.draft, alone.prompt_lookup) == (None, False)
    assert "recurrent keeps a recurrent state" in alone.notices[0]
    assert "it writes alone" in alone.notices[0]


def test_a_recurrent_target_that_was_to_write_alone_is_no_news(recurrent: Path) -> None:
    assert loaded(recurrent, None).notices == ()


def test_special_tokens_that_differ_are_reported(save_model: SaveModel) -> None:
    ours, theirs = (byte_tokenizer(extra=(one,)) for one in ("<ours>", "<theirs>"))
    both = loaded(save_model("target", tokenizer=ours), save_model("draft", tokenizer=theirs))
    assert both.draft is not None
    assert both.vocabulary == 261
    assert "260 is '<ours>' in the target and '<theirs>' in the draft" in both.notices[0]
