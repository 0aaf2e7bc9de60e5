"""Work that needs torch, in a process of its own: this one never imports it."""

from __future__ import annotations

import subprocess
import sys


def run_module(name: str, order: str) -> int:
    """`python -m name order`, to its end; returns its exit status."""
    with subprocess.Popen([sys.executable, "-P", "-m", name, order]) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal has told the process as well, and it has things to put away.
                continue
