"""The first picture: drawn before any library is imported, and nothing typed on it is lost."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from fsd_chat.places import theme_file
from fsd_chat.tui.first_frame import LEAVE, PLACEHOLDER, colours, frame, one_word

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
KEYS_TYPED = b"hello\r\x1b[A"
PROGRAM = """
import os, sys, time
from fsd_chat.tui.first_frame import first_frame
from pathlib import Path
try:
    with first_frame(None, "smol"):
        time.sleep(1.0)
        # What an app does that reads keys as they are typed.
        import termios, tty
        tty.setraw(0, termios.TCSANOW)
        os.write(2, b"<" + os.read(0, 100).hex().encode() + b">")
        if len(sys.argv) > 1:
            raise SystemExit("failed")
finally:
    state = termios.tcgetattr(0)
    os.write(2, f"[{bool(state[3] & termios.ECHO)} {bool(state[0] & termios.ICRNL)}]".encode())
"""


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import fsd_chat.tui.first_frame\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - set(sys.stdlib_module_names)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert done.stdout.strip() == "['fsd_chat']"


@pytest.mark.parametrize("size", [(80, 24), (60, 20), (120, 40), (30, 8)])
def test_it_fills_the_screen_and_no_more(size: tuple[int, int]) -> None:
    width, height = size
    drawn = frame(colours(theme_file("dusk")), "smol", width, height)
    rows = re.split(r"\x1b\[\d+;1H", drawn)[1:]
    texts = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in rows]
    assert len(rows) == height
    assert {len(text) for text in texts} == {width}
    assert PLACEHOLDER[: width - 6] in texts[-3]
    assert texts[-1].startswith(" smol")
    assert texts[-1].endswith("starting ")


def test_a_tiny_terminal_gets_no_frame() -> None:
    assert frame({}, "smol", 10, 3) == ""


def test_a_name_cannot_act_on_the_terminal() -> None:
    assert "\x1b" not in one_word("\x1b[2Jevil\x07")


def test_without_colours_it_sets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert colours(theme_file("dusk")) == {}
    assert "38;2" not in frame({}, "smol", 80, 24)


def test_a_broken_theme_is_no_obstacle(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("background = [")
    assert colours(broken) == {}


def on_a_terminal(*arguments: str) -> str:
    """What PROGRAM wrote to a terminal on which keys were typed at once."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, *arguments], ENVIRONMENT)
    termios.tcsetwinsize(terminal, (24, 80))
    seen = b""
    typed = False
    while select.select([terminal], [], [], 20)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        seen += data
        if not typed and b"starting" in seen:
            os.write(terminal, KEYS_TYPED)
            typed = True
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    return seen.decode(errors="replace")


def test_keys_typed_on_it_reach_the_app_as_they_were_typed() -> None:
    assert f"<{KEYS_TYPED.hex()}>" in on_a_terminal()


def test_a_failure_leaves_the_terminal_as_it_was() -> None:
    said = on_a_terminal("fail")
    assert LEAVE in said
    assert "[True True]" in said
