"""How much memory this machine has, found out without importing torch (which takes seconds)."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass

OVERHEAD = 1.2
"""Caches and working memory on top of the weights, roughly, for a few thousand tokens."""


@dataclass(frozen=True)
class Machine:
    memory_bytes: int | None
    gpu_bytes: int | None
    """Of the first NVIDIA GPU; None without one."""
    bfloat16: bool
    """Models are kept in two bytes per weight; elsewhere the engine takes float32."""

    @property
    def room(self) -> int | None:
        """Bytes there are where the models would go."""
        return self.memory_bytes if self.gpu_bytes is None else self.gpu_bytes

    def needs(self, weights: int) -> int:
        """Bytes for models whose weights are `weights` bytes in bfloat16."""
        return int(weights * OVERHEAD * (1 if self.bfloat16 else 2))


def this_machine() -> Machine:
    gpu = _gpu_memory()
    apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return Machine(_memory(), gpu, bfloat16=gpu is not None or apple)


def _memory() -> int | None:
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _windows_memory() -> int | None:
    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            ("total", ctypes.c_ulonglong),
            ("rest", ctypes.c_ulonglong * 6),
        )

    status = Status(length=ctypes.sizeof(Status))
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 (exists on Windows only)
    return int(status.total) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None


def _gpu_memory() -> int | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
        return int(told.splitlines()[0]) * 2**20
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return None
