"""How long the app takes from the start of its process to its first paint, and to its first key.

`python -m fsd_chat.measure.first_paint [runs]` starts the program in a terminal of its own and
types at once. The first paint is there when the prompt's words are on the screen, the first key
when what was typed is. POSIX only.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time

PAINTED = b"Enter sends"
"""Part of what the empty prompt says."""
TYPED = b"xqzj"
PATIENCE_S = 30.0


def first_paint_and_key_s(command: list[str], folder: str) -> tuple[float, float]:
    """Seconds until the prompt is on the screen, and until what was typed is. TimeoutError."""
    start = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        places = {f"FSD_CHAT_{name}": os.path.join(folder, name) for name in ("DATA", "CONFIG")}
        os.execvpe(command[0], command, {**os.environ, **places, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        painted = _until(terminal, PAINTED)
        os.write(terminal, TYPED)
        return painted - start, _until(terminal, TYPED) - start
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def _until(terminal: int, wanted: bytes) -> float:
    seen = b""
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        seen += os.read(terminal, 65536)
        if wanted in seen:
            return time.perf_counter()
    raise TimeoutError(f"{wanted!r} did not appear in {PATIENCE_S:.0f} s; it said {seen[-300:]!r}")


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    command = [sys.executable, "-m", "fsd_chat"]
    with tempfile.TemporaryDirectory() as folder:
        measured = [first_paint_and_key_s(command, folder) for _ in range(runs)]
    for name, column in zip(("first paint", "first key"), zip(*measured, strict=True), strict=True):
        print(
            f"{name}, {runs} runs: minimum {min(column):.3f} s, "
            f"median {statistics.median(column):.3f} s, maximum {max(column):.3f} s"
        )


if __name__ == "__main__":
    main()
