"""A draft made for its target says, step by step, what it says when it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from families.tiny import (
    CONTEXT,
    VOCABULARY,
    accepted,
    assert_cached,
    generated,
    some_text,
    tiny,
    written,
)
from models.conftest import tiny_llama
from safetensors.torch import load_file, save_file

from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.settings import Knob, Sampling
from fsd_chat.distill.batches import Batch
from fsd_chat.distill.reading import read_along
from fsd_chat.distill.student import begin
from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models.cached import DynamicCachedModel, TargetReader
from fsd_chat.models.cached_draft import CachedDraft, DraftReader, StaticCachedDraft
from fsd_chat.models.errors import ModelError
from fsd_chat.models.layers import layers_of
from fsd_chat.models.pair import load_pair
from fsd_chat.models.quantization import plain
from fsd_chat.models.small_draft import FLOOR, PARTS, SmallDraft, load_parts, save_parts
from fsd_chat.models.static import StaticCachedModel

LEVELS = (1, 2)
DEPTH = 3
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


def small(
    target: Any,
    vocabulary: torch.Tensor | None = None,
    layers: Sequence[int] = (1,),
    strength: float = 0.05,
) -> SmallDraft:
    """Some of the target's layers, with random connections to its hidden states."""
    draft = begin(target, layers, LEVELS, vocabulary)
    torch.manual_seed(4)
    assert draft.fuse is not None
    assert draft.carry is not None
    for connection in (draft.fuse, draft.carry):
        torch.nn.init.normal_(connection.weight, std=strength)
    return draft.eval()


Together = Callable[[Any, SmallDraft], tuple[TargetReader, DraftReader]]


def with_transformers(target: Any, draft: SmallDraft) -> tuple[TargetReader, DraftReader]:
    reader = DynamicCachedModel(target, VOCABULARY, CONTEXT, draft.levels)
    return reader, CachedDraft(draft, VOCABULARY, CONTEXT, reader)


def with_our_own(target: Any, draft: SmallDraft) -> tuple[TargetReader, DraftReader]:
    layers = layers_of(target, plain)
    few = layers_of(draft.model, plain, plain(*draft.head.known))
    assert layers is not None
    assert few is not None
    reader = StaticCachedModel(target, layers, VOCABULARY, CONTEXT, draft.levels)
    return reader, StaticCachedDraft(draft, few, VOCABULARY, CONTEXT, reader)


@pytest.fixture(params=[with_transformers, with_our_own])
def together(request: pytest.FixtureRequest) -> Together:
    found: Together = request.param
    return found


def features(target: Any, text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        states = target(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.stack([states[level] for level in LEVELS], dim=-2)


def test_drafting_is_what_was_trained(together: Together) -> None:
    """Every row of every depth, against the one pass that training makes."""
    target = tiny("llama")
    draft = small(target)
    text = some_text(14)
    batch = Batch(
        torch.tensor([text]),
        features(target, text),
        torch.zeros(1, len(text), 2),
        torch.full((1, len(text)), 2),
        len(text),
    )
    outputs: list[torch.Tensor] = []
    read = draft.read

    def recorded(*given: Any, **options: Any) -> torch.Tensor:
        outputs.append(read(*given, **options))
        return outputs[-1]

    draft.read = recorded  # type: ignore[method-assign]
    with torch.inference_mode():
        read_along(draft, batch, DEPTH, 0.7, answers_only=True)
        trained = [draft.head(one[0]) for one in outputs]
    draft.read = read  # type: ignore[method-assign]

    for asked in range(1, len(text) - DEPTH):
        reader, drafting = together(target, draft)
        reader.forward(torch.tensor(text[:asked]), rows=1)
        row = drafting.forward(torch.tensor(text[: asked + 1]), rows=1)
        for step in range(DEPTH):
            torch.testing.assert_close(row[0], trained[step][asked + step], **ROUNDING)
            row = drafting.forward(torch.tensor([text[asked + step + 1]]), rows=1)


def test_what_was_read_without_the_target_is_read_again_with_it(together: Together) -> None:
    target = tiny("llama")
    draft = small(target)
    text = some_text(12)
    reader, drafting = together(target, draft)
    reader.forward(torch.tensor(text[:5]), rows=1)
    drafting.forward(torch.tensor(text[:9]), rows=1)
    reader.forward(torch.tensor(text[5:10]), rows=5)
    drafting.rollback(8)
    assert drafting.length == 6
    row = drafting.forward(torch.tensor(text[6:11]), rows=1)
    anew_target, anew = together(target, draft)
    anew_target.forward(torch.tensor(text[:10]), rows=1)
    torch.testing.assert_close(row, anew.forward(torch.tensor(text[:11]), rows=1))


@pytest.mark.parametrize("head", [None, torch.arange(0, VOCABULARY, 2)])
def test_greedy_at_threshold_zero_is_the_targets_own_greedy_decoding(
    head: torch.Tensor | None, together: Together
) -> None:
    target = tiny("llama")
    reader, drafting = together(target, small(target, head, layers=(0, 1), strength=0.01))
    prompt = some_text(9)
    text = list(prompt)
    rounds = written(reader, ModelDrafter(drafting), text, 40)
    assert text[len(prompt) :][:40] == generated(target, prompt, 40)
    assert 0 < accepted(rounds) < 1
    assert_cached(reader, target, text)


def test_at_the_threshold_s_bound_everything_is_accepted(together: Together) -> None:
    target = tiny("llama")
    reader, drafting = together(target, small(target))
    rounds = written(
        reader,
        ModelDrafter(drafting),
        some_text(9),
        40,
        knob=Knob(rule="fsd", threshold=0.7),
        sampling=Sampling(temperature=0.7),
    )
    assert accepted(rounds) == 1


def test_rows_are_full_though_the_head_knows_few_ids() -> None:
    target = tiny("llama")
    known = torch.tensor([3, 17, 40])
    head = small(target, known).head
    logits = torch.tensor([[1.0, 5.0, -2.0]])
    row = head.spread(logits)
    assert row.shape == (1, VOCABULARY)
    assert row[0, known].tolist() == [1.0, 5.0, -2.0]
    others = [id for id in range(VOCABULARY) if id not in (3, 17, 40)]
    assert set(row[0, others].tolist()) == {5.0 - FLOOR}


@pytest.fixture
def pair(tmp_path: Path, save_model: Callable[..., Path]) -> LoadPair:
    """A target and a draft made for it, as folders."""
    target = save_model("target", seed=1)
    draft = begin(tiny_llama(260, seed=1), (1,), LEVELS, torch.arange(10, 260))
    folder = save_model("draft", seed=1)
    draft.model.save_pretrained(folder)
    save_parts(draft, "target", folder)
    return LoadPair(
        name="made",
        target=ModelSource(location=str(target), device="cpu", dtype="float32"),
        draft=ModelSource(location=str(folder), device="cpu", dtype="float32"),
    )


def quiet(stage: str, fraction: float | None) -> None:
    pass


def test_a_folder_with_parts_is_loaded_as_the_draft_that_it_is(pair: LoadPair) -> None:
    loaded = load_pair(pair, quiet)
    target, draft = loaded.cached()
    assert isinstance(draft, StaticCachedDraft)
    assert loaded.draft is not None
    assert loaded.draft.small is not None
    assert loaded.draft.small.levels == LEVELS
    text = torch.tensor([5, 6, 7])
    target.forward(text, rows=1)
    assert draft.forward(text, rows=3).shape == (3, loaded.vocabulary)


def test_another_target_than_it_was_made_for_is_refused(
    pair: LoadPair, tmp_path: Path, save_model: Callable[..., Path]
) -> None:
    assert pair.draft is not None
    place = Path(pair.draft.location) / PARTS
    save_file(load_file(place), place, {"format": "1", "levels": "1,7", "target": "x"})
    with pytest.raises(ModelError, match="7 layers of 32; target has 2 of 32"):
        load_pair(pair, quiet)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"vocabulary": torch.tensor([4, 999], dtype=torch.int32)}, "no rows of a head of 260"),
        ({"fuse.weight": torch.zeros(3, 3)}, "size mismatch"),
        ({"stranger": torch.zeros(3)}, "no use for"),
        ({"format": "9"}, "its format is '9'"),
    ],
)
def test_parts_that_do_not_belong_to_the_model_are_refused(
    pair: LoadPair, change: dict[str, Any], what: str
) -> None:
    assert pair.draft is not None
    place = Path(pair.draft.location) / PARTS
    version = change.pop("format", "1")
    about = {"format": version, "levels": "1,2", "target": "x"}
    save_file({**load_file(place), **change}, place, about)
    with pytest.raises(ModelError, match=what):
        load_pair(pair, quiet)


def test_half_a_file_is_refused(pair: LoadPair) -> None:
    assert pair.draft is not None
    place = Path(pair.draft.location) / PARTS
    place.write_bytes(place.read_bytes()[:50])
    with pytest.raises(ModelError, match=r"draft\.safetensors does not belong"):
        load_pair(pair, quiet)


def test_an_ordinary_folder_has_no_parts(save_model: Callable[..., Path]) -> None:
    assert load_parts(tiny_llama(260), save_model("ordinary")) is None
