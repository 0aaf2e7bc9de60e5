from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fsd_chat.engine.hardware import physical_cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are told apart on Linux")


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight CPUs, two on every core."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    return tmp_path


def test_two_threads_of_a_core_count_once(topology: Path) -> None:
    assert physical_cores(topology, topology / "none") == 4


def test_only_the_cpus_this_process_may_use_count(
    topology: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 4, 1})
    assert physical_cores(topology, topology / "none") == 2


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1)])
def test_a_containers_share_is_respected(topology: Path, quota: str, cores: int) -> None:
    share = topology / "cpu.max"
    share.write_text(quota)
    assert physical_cores(topology, share) == cores


def test_a_container_without_a_limit_has_all_cores(topology: Path) -> None:
    share = topology / "cpu.max"
    share.write_text("max 100000\n")
    assert physical_cores(topology, share) == 4


def test_cores_that_cannot_be_told_are_not_guessed(tmp_path: Path) -> None:
    assert physical_cores(tmp_path / "none", tmp_path / "none") is None
