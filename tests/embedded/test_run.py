"""`fsd-chat run` as a program, with the real engine and the embedded pair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_chat.models.embedded import embedded_folder

PROGRAM = [sys.executable, "-m", "fsd_chat", "run", "Tell me about rivers."]
PATIENCE_S = 240
STOPPED_WITHIN_S = 10


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded_folder("target", lambda stage, fraction: None)
    monkeypatch.setenv("FSD_CHAT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FSD_CHAT_CONFIG", str(tmp_path / "config.toml"))


def test_one_json_object_whose_counts_add_up() -> None:
    options = ["--json", "--temperature", "0", "--seed", "1", "-T", "0.2", "--max-tokens", "24"]
    ended = subprocess.run(
        [*PROGRAM, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    counts = found["statistics"]
    origins = [token["origin"] for token in found["tokens"]]
    assert found["text"].startswith("".join(token["text"] for token in found["tokens"])[:10])
    assert len(origins) == counts["output_n"] == 24
    assert counts["draft_n"] >= counts["verified_n"] > 0
    assert counts["draft_n_accepted"] == origins.count("accepted") + origins.count("fuzzy")
    assert counts["fuzzy_n"] == origins.count("fuzzy")
    assert counts["verified_n"] == counts["draft_n_accepted"] + origins.count("recovered")
    assert counts["tokens_per_second"] > 0
    assert counts["time_to_first_token_s"] > 0
    assert found["settings"]["knob"]["threshold"] == 0.2
    for token in found["tokens"]:
        if token["origin"] == "fuzzy":
            assert token["divergence"] <= 0.2


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_stops_the_reply_within_a_round_and_keeps_what_was_said() -> None:
    program = subprocess.Popen(
        [*PROGRAM, "--max-tokens", "1000", "--logit-bias", "2=-inf"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert program.stdout is not None
    try:
        first = os.read(program.stdout.fileno(), 1)
        os.kill(program.pid, signal.SIGINT)
        rest, said = program.communicate(timeout=STOPPED_WITHIN_S)
    finally:
        program.kill()
    assert program.returncode == 130
    assert (first + rest).strip()
    assert b"ended by stopped" in said
    assert b"Traceback" not in said


def test_a_target_that_is_not_there_is_one_line_and_status_1() -> None:
    ended = subprocess.run(
        [*PROGRAM, "--target", "./no-such-model"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1
    assert not ended.stdout
    assert ended.stderr.count("\n") == 1
    assert "no-such-model" in ended.stderr
