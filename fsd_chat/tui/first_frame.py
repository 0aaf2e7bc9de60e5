"""The app's first picture, drawn while the library that draws all others is still being imported.

That import takes most of half a second on a slow machine. This module needs nothing but the
standard library, so the screen answers at once, and what is typed meanwhile waits for the prompt.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
PLACEHOLDER = "Ask something. Enter sends, Ctrl+J begins a new line, F1 helps."
MEASURE = 104
_HEX = re.compile(r"#[0-9a-fA-F]{6}")


@contextlib.contextmanager
def first_frame(theme: Path | None, pair: str) -> Iterator[None]:
    """Show the frame, keep typed keys quiet, and put the terminal back if the app never comes up.

    theme: the file whose colours to use. Does nothing where there are no POSIX terminals.
    """
    if sys.platform == "win32":
        yield
        return
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    # Neither echoed over the picture nor kept back until a line is complete; and Enter stays
    # Enter, which the app would otherwise read as Ctrl+J.
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[0] &= ~termios.ICRNL
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        width, height = os.get_terminal_size(sys.stdout.fileno())
        _write(ENTER + frame(colours(theme), one_word(pair), width, height))
        yield
    except BaseException:
        _write(LEAVE)
        raise
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _write(text: str) -> None:
    """To where the app writes as well."""
    stream = sys.__stderr__
    if stream is not None:
        stream.write(text)
        stream.flush()


def colours(theme: Path | None) -> dict[str, str]:
    """The theme's colours by name, as far as they are plain; none under NO_COLOR."""
    if theme is None or os.environ.get("NO_COLOR"):
        return {}
    try:
        entry = tomllib.loads(theme.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The app itself says what is wrong with it.
        return {}
    return {
        name: value
        for name, value in entry.items()
        if isinstance(value, str) and _HEX.fullmatch(value)
    }


def one_word(name: str) -> str:
    return re.sub(r"[^\w.+-]", " ", name)[:14]


def side_margin(width: int) -> int:
    """Cells left free beside the prompt: text much wider than MEASURE is hard to read."""
    return max(1, (width - MEASURE) // 2)


def frame(colours: dict[str, str], pair: str, width: int, height: int) -> str:
    """The empty chat, as the control sequences that draw it."""
    if width < 20 or height < 6:
        return ""
    screen = _paint(colours, "foreground", "background")
    box = _paint(colours, "primary", "background")
    faint = _paint(colours, "gauge-rest", "background")
    bar = _paint(colours, "foreground", "panel")
    beside = " " * side_margin(width)
    inside = width - 2 * len(beside) - 2
    text = PLACEHOLDER[: inside - 2].ljust(inside - 2)
    status = f" {pair}".ljust(width - 9) + "starting "
    rows = [screen + " " * width] * (height - 4)
    rows.append(f"{screen}{beside}{box}╭{'─' * inside}╮{screen}{beside}")
    rows.append(f"{screen}{beside}{box}│ {faint}{text}{box} │{screen}{beside}")
    rows.append(f"{screen}{beside}{box}╰{'─' * inside}╯{screen}{beside}")
    rows.append(bar + status[:width])
    placed = (f"\x1b[{number};1H{row}" for number, row in enumerate(rows, start=1))
    return "".join(placed) + "\x1b[0m"


def _paint(colours: dict[str, str], text: str, ground: str) -> str:
    codes = ["0"]
    for name, kind in ((text, 38), (ground, 48)):
        if name in colours:
            red, green, blue = (int(colours[name][at : at + 2], 16) for at in (1, 3, 5))
            codes.append(f"{kind};2;{red};{green};{blue}")
    return f"\x1b[{';'.join(codes)}m"
