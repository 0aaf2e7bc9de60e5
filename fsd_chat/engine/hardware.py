"""What the engine asks of the machine: threads, and memory back."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import torch

_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def use_physical_cores() -> None:
    """One thread per physical core this process may use: two on a core get in each other's way.

    OMP_NUM_THREADS has the last word, and where cores cannot be told torch's own choice stands.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        cores = physical_cores(_TOPOLOGY, _QUOTA)
        if cores is not None:
            torch.set_num_threads(cores)


def physical_cores(topology: Path, quota: Path) -> int | None:
    """Cores among the allowed CPUs, at most the container's share; None where it is not known."""
    if sys.platform != "linux":
        return None
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add((topology / f"cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            return None
    return min(len(cores), _share(quota) or len(cores))


def _share(quota: Path) -> int | None:
    try:
        allowed, period = quota.read_text().split()
        return max(1, int(allowed) // int(period))
    except (OSError, ValueError):
        return None


def free_memory() -> None:
    """Give back what nothing refers to any more, to the device as well."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
