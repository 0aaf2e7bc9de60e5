"""How far a distillation is, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

EVERY_S = 0.5
PLAIN_EVERY_S = 15.0


class Display:
    """One line that is drawn anew; in a file or pipe, a line every so often."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._last = 0.0
        self._stage = ""

    def show(self, stage: str, done: float, left_s: float | None, *figures: str) -> None:
        """done: part of this stage, 0 to 1. left_s: seconds until all is done, if it is known."""
        every = PLAIN_EVERY_S if self._live is None else EVERY_S
        now = time.monotonic()
        if stage == self._stage and now - self._last < every:
            return
        self._stage, self._last = stage, now
        words = [*figures, *([] if left_s is None else [f"{duration(left_s)} left"])]
        if self._live is None:
            self.say(", ".join([f"{stage} {done:.0%}", *words]))
            return
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(stage), ProgressBar(1.0, done, width=24), Text(" · ".join(words)))
        self._live.update(line, refresh=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(escape(text), highlight=False)


@contextmanager
def display() -> Iterator[Display]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Display(None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Display(live)


def duration(seconds: float) -> str:
    """As people say it: `40 s`, `12 min`, `3 h 5 min`."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
