"""On which device, in which precision, and whether there is room."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from fsd_chat.models.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OVERFLOWING_IN_FLOAT16 = ("gemma2", "gemma3", "gemma3_text")
"""Families whose activations exceed what float16 can hold (transformers #39972, #36832)."""


def choose_device(wanted: str | None) -> torch.device:
    """CUDA, then MPS, then the CPU, unless one is asked for; ModelError if that cannot be used."""
    if wanted is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=wanted)
        # Fails for `meta`, which can be named but holds no numbers.
        probe.cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError("unsupported", f"the device {wanted!r} cannot be used here") from error
    return probe.device


def choose_dtype(wanted: str | None, device: torch.device, family: str) -> torch.dtype:
    """bfloat16 where the hardware computes in it, else float32, unless one is asked for."""
    if wanted is None:
        return torch.bfloat16 if _fast_in_bfloat16(device) else torch.float32
    if wanted not in DTYPES:
        raise ModelError("bad-request", f"the dtype is one of {', '.join(DTYPES)}, not {wanted!r}")
    if wanted == "float16" and family in OVERFLOWING_IN_FLOAT16:
        raise ModelError(
            "unsupported", f"{family} models overflow float16; use --dtype bfloat16 or float32"
        )
    return DTYPES[wanted]


def _fast_in_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return _cpu_has("_is_avx512_bf16_supported") or _cpu_has("_is_amx_tile_supported")
    return _computes_in_bfloat16(device)


def _cpu_has(question: str) -> bool:
    """torch asks the processor under private names, which may go away."""
    asked: Callable[[], bool] = getattr(torch.cpu, question, lambda: False)
    return asked()


def _computes_in_bfloat16(device: torch.device) -> bool:
    """Older systems under MPS refuse it."""
    try:
        torch.ones(1, dtype=torch.bfloat16, device=device).add(1)
    except (RuntimeError, TypeError):
        return False
    return True


def check_room(name: str, weights: int, device: torch.device) -> None:
    """Raises ModelError if `weights` bytes cannot be in the device's memory: a system that lends
    more than it has would end the process without a word."""
    room = memory_of(device)
    if room is not None and weights > room:
        raise ModelError(
            "memory",
            f"{name} needs {weights / 1e9:.1f} GB for its weights and {device} has "
            f"{room / 1e9:.1f} GB; choose a smaller model, another --device or a --dtype of fewer "
            "bytes",
        )


def memory_of(device: torch.device) -> int | None:
    """Bytes that are free on a GPU, or that a machine has; None where nobody can tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        # Windows has no sysconf, and refuses by itself what it cannot give.
        return None
