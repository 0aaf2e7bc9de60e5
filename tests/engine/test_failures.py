from __future__ import annotations

import pytest
import torch

from fsd_chat.engine.failures import EngineError, failed


def test_an_understood_failure_keeps_its_kind_and_becomes_one_line() -> None:
    event = failed(EngineError("template", "no template\n  in this model"), 7, "/log")
    assert (event.kind, event.request) == ("template", 7)
    assert event.message == "no template in this model"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_every_allocator_running_out_is_a_memory_failure_with_advice(error: Exception) -> None:
    event = failed(error, None, "/log")
    assert event.kind == "memory"
    assert "smaller pair" in event.message


def test_a_failure_nobody_foresaw_names_itself_and_the_log() -> None:
    event = failed(ZeroDivisionError("division by zero\nhere"), None, "/some/log")
    assert event.kind == "internal"
    assert event.message == "ZeroDivisionError: division by zero here (details in /some/log)"


def test_a_very_long_failure_is_cut() -> None:
    assert len(failed(ValueError("x" * 5000), None, "/log").message) < 500
