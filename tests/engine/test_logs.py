from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from fsd_chat.engine.logs import KEPT, log_folder, new_log


def test_logs_are_private_and_below_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSD_CHAT_DATA", str(tmp_path / "data"))
    log = new_log()
    assert log.parent == log_folder() == tmp_path / "data" / "logs"
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_only_the_newest_logs_are_kept_and_nothing_else_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSD_CHAT_DATA", str(tmp_path))
    (tmp_path / "logs").mkdir()
    other = tmp_path / "logs" / "mine.log"
    other.write_text("keep")
    logs = [new_log() for _ in range(KEPT + 3)]
    assert [log for log in logs if log.exists()] == logs[-KEPT:]
    assert other.exists()


def test_a_log_folder_that_cannot_be_made_does_not_keep_the_engine_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FSD_CHAT_DATA", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    assert new_log().is_relative_to(tmp_path / "elsewhere")
