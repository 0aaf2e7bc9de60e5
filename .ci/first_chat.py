"""Do what a stranger does: run the README's first command, ask something, save, quit.

The command runs in a terminal of its own, through a shell, as it stands in the README. The chat is
there when the saved transcript holds a reply that a model has written through speculative rounds.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from readme_command import command

QUESTION = "Write a python function that reverses a string."
PATIENCE_S = 900.0
QUITTING_S = 5.0
GIVEN_UP = "no model"
"""What the status bar says when a pair cannot be loaded."""


class Terminal:
    """A shell command on a terminal of 80 × 24."""

    def __init__(self, shell_command: str) -> None:
        self.seen = ""
        self.process, self._end = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp("bash", ["bash", "-c", shell_command])
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def watch(self, seconds: float) -> bool:
        """Read for so long; False once the program is gone."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._end], [], [], left)[0]:
                break
            try:
                data = os.read(self._end, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.seen += data.decode(errors="replace")
        return True

    @property
    def text(self) -> str:
        return re.sub(r"\x1b(\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\)?)", "", self.seen)


def wait_for(terminal: Terminal, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while wanted not in terminal.text:
        gone = not terminal.watch(0.5) or GIVEN_UP in terminal.text
        if gone or time.monotonic() > deadline:
            sys.exit(f"{wanted!r} did not appear. The terminal's end:\n{terminal.text[-3000:]}")


def finished_reply(path: Path) -> dict[str, object] | None:
    if not path.exists():
        return None
    messages = json.loads(path.read_text(encoding="utf-8"))["messages"]
    replies = [one["reply"] for one in messages if "reply" in one]
    return next((reply for reply in replies if reply["finish"]), None)


def main() -> None:
    start = time.monotonic()
    terminal = Terminal(command("chat"))
    wait_for(terminal, "Enter sends")
    print(f"on the screen after {time.monotonic() - start:.0f} s, installation included")
    # Typed while the models are still being fetched and loaded, as anybody would.
    terminal.type(f"{QUESTION}\r")
    wait_for(terminal, "writing")
    print(f"writing after {time.monotonic() - start:.0f} s")
    with tempfile.TemporaryDirectory() as folder:
        for attempt in range(200):
            terminal.watch(3)
            path = Path(folder) / f"{attempt}.json"
            terminal.type(f"/save {path}\r")
            terminal.watch(1)
            reply = finished_reply(path)
            if reply is not None:
                break
        else:
            sys.exit(f"no reply was finished. The terminal's end:\n{terminal.text[-3000:]}")
    check(reply)
    terminal.type("\x11")
    if terminal.watch(QUITTING_S):
        sys.exit(f"the program was still there {QUITTING_S:.0f} s after it was asked to quit")
    _, status = os.waitpid(terminal.process, 0)
    if status:
        sys.exit(f"the command ended with status {status}")


def check(reply: dict[str, object]) -> None:
    statistics = reply["statistics"]
    assert isinstance(statistics, dict)
    print(f"the reply:\n{reply['text']}\n{statistics}")
    if not str(reply["text"]).strip() or not statistics["draft_n_accepted"]:
        sys.exit("the reply is empty, or nothing of it was drafted")


if __name__ == "__main__":
    main()
