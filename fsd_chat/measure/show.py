"""What the bench found, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fsd_chat.measure.bookkeeping import LARGE, LARGE_BYTES

if TYPE_CHECKING:
    from fsd_chat.measure.bench import Findings
    from fsd_chat.measure.speed import Way

COLUMNS = {
    "tok/s": "tokens a second of decoding, the median over answers",
    "±": "half the distance between its quartiles",
    "×": "against the first way, answer by answer",
    "first": "milliseconds to the first token or round",
    "round": "tokens of one",
    "acc.": "part of the verified drafts that stayed",
    "fuzzy": "part of the tokens that only the threshold let stay",
    "perpl.": "perplexity of the answers under the target at temperature 1",
    "rest": "part of a round that is neither model's",
}


def show(found: Findings) -> None:
    """Print everything."""
    console = Console(highlight=False)
    overlap, measured = found.overlap, found.costs
    bits = "" if found.quantization == "none" else f", {found.quantization}"
    console.print(
        f"[bold]{escape(found.target)} + {escape(found.draft)}[/], {found.device}, "
        f"{found.dtype}{bits}, {found.threads} threads\n"
        f"overlap {overlap.overlap:.3f}, greedy agreement {overlap.greedy:.3f} at temperature "
        f"{overlap.temperature:g} on {overlap.conversations} answers of the target "
        f"({overlap.positions:,} tokens)\n"
        f"one step of the draft {measured.draft_s * 1000:.1f} ms, of the target "
        f"{measured.target_s[1] * 1000:.1f} ms: [bold]{measured.ratio:.1%}[/]"
    )
    for kind, nats in found.divergences.items():
        console.print(f"{kind}: KL {nats:.4f} nats a token from the target as it is stored")
    reading = Table(box=None, pad_edge=False)
    for width in measured.target_s:
        reading.add_column(f"{width}", justify="right")
    reading.add_row(*(f"{seconds * 1000:.1f}" for seconds in measured.target_s.values()))
    console.print("\nThe target reading so many tokens at once, ms", reading, sep="\n")
    later = found.later_turn
    console.print(
        f"\n{later.new} new tokens to the first round: {later.fresh_s * 1000:.0f} ms, after "
        f"{later.cached:,} that are cached {later.later_s * 1000:.0f} ms: {later.ratio:.2f}×"
    )
    beside = found.bookkeeping
    console.print(
        f"a round beside the models: {beside.own_s * 1000:.1f} ms; with {LARGE:,} ids "
        f"{beside.large_s * 1000:.1f} ms, or {beside.large_share:.1%} beside a target of "
        f"{LARGE_BYTES / 1e9:.0f} GB, since memory reads {beside.bandwidth / 1e9:.0f} GB/s"
    )
    for temperature in dict.fromkeys(way.temperature for way in found.ways):
        ways = [way for way in found.ways if way.temperature == temperature]
        console.print(f"\nSide by side at temperature {temperature:g}", _table(ways), sep="\n")
    console.print("; ".join(f"{name}: {said}" for name, said in COLUMNS.items()))


def _table(ways: list[Way]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("way", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for way in ways:
        table.add_row(
            way.name,
            f"{way.tokens_per_s:.1f}",
            f"{way.spread:.0%}",
            f"{way.ratio:.2f}",
            f"{way.first_s * 1000:.0f}",
            "" if way.tokens_per_round is None else f"{way.tokens_per_round:.2f}",
            *("" if share is None else f"{share:.0%}" for share in (way.acceptance, way.fuzzy)),
            f"{way.perplexity:.1f}",
            "" if way.outside is None or not way.verify_s else f"{way.outside:.0%}",
        )
    return table
