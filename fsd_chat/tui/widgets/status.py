"""The status bar: what the knob does, in one line, at any width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from fsd_chat.chats.display import one_line

GAUGE_CELLS = 6
FAINT = "$foreground 70%"
ASKED_FOR, ALWAYS = 4, 9
"""Importance from which a part is put briefly rather than left out, and from which it stays."""


@dataclass(frozen=True)
class Status:
    """Everything the bar may show; None where it is not known."""

    pair: str
    rule: str
    divergence: str
    threshold: float
    gauge: float
    """How far the knob is turned, 0 to 1."""
    activity: str
    detail: str = ""
    """More about the activity, where there is room."""
    drafting: bool = True
    """False: the target is alone, whatever the rule says."""
    acceptance: float | None = None
    recent_acceptance: float | None = None
    exact_acceptance: float | None = None
    fuzzy_share: float | None = None
    tokens_per_second: float | None = None
    tokens_per_round: float | None = None
    drafted: int | None = None
    from_token: int | None = None
    """Index of the first token that the present knob governs, if it was turned in this reply."""
    turned: bool = False
    """It was turned a moment ago, so that is what one looks for."""


@dataclass(frozen=True)
class Part:
    content: Content
    importance: int
    """Parts of the lowest importance go first where the line is too narrow."""
    right: bool = False
    """Stands at the right end."""

    @property
    def width(self) -> int:
        return cell_len(self.content.plain)


class StatusBar(Static):
    """Shows a `Status`; drops what matters least where it would not fit, and never T."""

    status: reactive[Status | None] = reactive(None, layout=False)

    def watch_status(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        if self.status is not None:
            self.update(line(self.status, self.content_size.width))


def line(status: Status, width: int) -> Content:
    """The bar's content in at most `width` cells, unless T and the activity need more."""
    parts = _fitting(list(_parts(status)), width, ASKED_FOR)
    if _total(parts) > width:
        parts = _fitting(list(_parts(status, brief=True)), width, ALWAYS)
    left = [part for part in parts if not part.right]
    right = [part for part in parts if part.right]
    gap = max(2, width - _total(left) - _total(right))
    return Content.assemble(_joined(left), " " * gap, _joined(right))


def _fitting(parts: list[Part], width: int, keep: int) -> list[Part]:
    """`parts` without as many of those less important than `keep` as it takes."""
    while _total(parts) > width:
        least = min(parts, key=lambda part: part.importance)
        if least.importance >= keep:
            break
        parts.remove(least)
    return parts


def _total(parts: list[Part]) -> int:
    return sum(part.width for part in parts) + 2 * (len(parts) - 1)


def _joined(parts: list[Part]) -> Content:
    return Content("  ").join(part.content for part in parts)


def _parts(status: Status, brief: bool = False) -> Iterator[Part]:
    yield Part(Content(one_line(status.pair, 10 if brief else 14)).stylize("bold"), 5)
    yield Part(Content.assemble(status.rule, (f" {status.divergence}", FAINT)), 6)
    yield Part(_threshold(status), ALWAYS)
    if status.from_token:
        yield Part(_governed(status.from_token), 7 if status.turned else 1)
    if not status.drafting:
        yield Part(Content("no draft").stylize("$warning"), 7)
    yield Part(_acceptance(status, brief), _known(status.acceptance, 8))
    if status.exact_acceptance is not None:
        yield Part(Content(f"exact {status.exact_acceptance:.0%}").stylize(FAINT), 3)
    if status.fuzzy_share:
        yield Part(Content(f"fuzzy {status.fuzzy_share:.0%}").stylize("$origin-fuzzy"), 2)
    yield Part(
        Content(f"{_number(status.tokens_per_second)} tok/s"), _known(status.tokens_per_second, 7)
    )
    yield Part(
        Content(f"{_number(status.tokens_per_round)}/round"),
        _known(status.tokens_per_round, ASKED_FOR),
    )
    if status.drafted is not None:
        yield Part(Content(f"draft {status.drafted}").stylize(FAINT), 1)
    if status.detail:
        yield Part(Content(one_line(status.detail, 40)).stylize(FAINT), 2, right=True)
    yield Part(Content(status.activity).stylize("$primary"), ALWAYS, right=True)


def _threshold(status: Status) -> Content:
    filled = round(status.gauge * GAUGE_CELLS)
    if status.threshold > 0:
        filled = max(1, filled)
    # Heavy and light, so that the gauge can be read without colours too.
    return Content.assemble(
        (f"T {short(status.threshold)} ", "bold"),
        ("━" * filled, "$gauge"),
        ("─" * (GAUGE_CELLS - filled), "$gauge-rest"),
    )


def _governed(index: int) -> Content:
    return Content(f"from token {index}").stylize("$gauge")


def short(threshold: float) -> str:
    """T in four or five cells."""
    if threshold == 0:
        return "0"
    return f"{threshold:.3f}" if threshold < 0.095 else f"{threshold:.2f}"


def _acceptance(status: Status, brief: bool) -> Content:
    """Of this reply, and of its last rounds."""
    if status.acceptance is None:
        return Content("acc –")
    if status.recent_acceptance is None:
        return Content(f"acc {status.acceptance:.0%}")
    if brief:
        recent = f"/{status.recent_acceptance:.0%}"
        return Content.assemble(f"acc {status.acceptance * 100:.0f}", (recent, FAINT))
    return Content.assemble(
        f"acc {status.acceptance:.0%}", (f" now {status.recent_acceptance:.0%}", FAINT)
    )


def _known(value: float | None, importance: int) -> int:
    """A place that is still empty is the first to go."""
    return 0 if value is None else importance


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
