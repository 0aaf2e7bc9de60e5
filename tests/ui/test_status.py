"""What the status bar says in how many cells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fsd_chat.tui.widgets.status import Status, line, short

FULL = Status(
    pair="smol",
    rule="fsd",
    divergence="js",
    threshold=0.3,
    gauge=0.43,
    activity="reading the prompt",
    acceptance=0.87,
    recent_acceptance=0.91,
    exact_acceptance=0.71,
    fuzzy_share=0.16,
    tokens_per_second=123.4,
    tokens_per_round=4.2,
    drafted=5,
    from_token=1200,
)
REQUIRED = (
    "smol",
    "fsd js",
    "T 0.30",
    "acc 87% now 91%",
    "123 tok/s",
    "4.2/round",
    "reading the prompt",
)


@pytest.mark.parametrize("width", [60, 78, 80, 118, 120, 200])
def test_the_bar_fills_its_width_exactly(width: int) -> None:
    assert cell_len(line(FULL, width).plain) == width


@pytest.mark.parametrize("activity", ["stopping", "writing", "ready"])
def test_at_80_columns_everything_that_is_asked_for_is_there(activity: str) -> None:
    shown = line(replace(FULL, activity=activity), 78).plain
    for part in (*REQUIRED[:-1], activity):
        assert part in shown
    assert "━━━───" in shown


def test_with_a_longer_name_the_bar_at_80_columns_is_brief_and_leaves_nothing_out() -> None:
    shown = line(replace(FULL, pair="qwen2.5-7b", activity="writing"), 78).plain
    for part in ("qwen2.5-7b", "fsd js", "acc 87/91%", "123 tok/s", "4.2/round", "writing"):
        assert part in shown


def test_at_120_columns_the_finer_points_are_there_too() -> None:
    shown = line(FULL, 118).plain
    for part in (*REQUIRED, "exact 71%", "fuzzy 16%"):
        assert part in shown


def test_at_60_columns_the_knob_and_what_it_does_stay() -> None:
    shown = line(FULL, 58).plain
    for part in ("T 0.30", "acc 87/91%", "reading the prompt"):
        assert part in shown


def test_before_anything_is_known_the_bar_has_its_places() -> None:
    shown = line(Status("smol", "fsd", "js", 0.1, 0.14, "loading 40%"), 78).plain
    for part in ("smol", "T 0.10", "acc –", "– tok/s", "–/round", "loading 40%"):
        assert part in shown


@given(
    width=st.integers(0, 200),
    pair=st.text(max_size=40),
    threshold=st.floats(0, 1e6),
    gauge=st.floats(0, 1),
)
def test_the_threshold_and_the_activity_never_go(
    width: int, pair: str, threshold: float, gauge: float
) -> None:
    shown = line(replace(FULL, pair=pair, threshold=threshold, gauge=gauge), width).plain
    assert f"T {short(threshold)} " in shown
    assert "reading the prompt" in shown
    assert "\n" not in shown
    assert "\x1b" not in shown


def test_a_pair_that_looks_like_markup_is_shown_as_it_is() -> None:
    assert "[/INST]" in line(replace(FULL, pair="[/INST]"), 120).plain


def test_any_threshold_above_zero_shows_on_the_gauge() -> None:
    assert "━" in line(replace(FULL, threshold=0.001, gauge=0.001), 80).plain
    assert "━" not in line(replace(FULL, threshold=0.0, gauge=0.0), 80).plain


@pytest.mark.parametrize(
    ("threshold", "shown"),
    [
        (0.0, "0"),
        (0.0042, "0.004"),
        (0.0949, "0.095"),
        (0.095, "0.10"),
        (0.3, "0.30"),
        (12, "12.00"),
    ],
)
def test_thresholds_are_short(threshold: float, shown: str) -> None:
    assert short(threshold) == shown
