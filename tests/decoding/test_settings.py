"""What the user may ask for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling


@pytest.mark.parametrize("threshold", [-0.1, -math.inf, math.nan])
def test_a_threshold_below_zero_or_not_a_number_is_refused_by_name(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must be 0 or more"):
        Knob(threshold=threshold)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 1e9, math.inf])
def test_any_other_threshold_is_taken(threshold: float) -> None:
    assert Knob(threshold=threshold).threshold == threshold


@pytest.mark.parametrize(
    ("setting", "named"),
    [({"form_k": 0}, "top-k"), ({"form_p": 0.0}, "top-p"), ({"form_p": 1.1}, "top-p")],
)
def test_a_form_of_divergence_that_looks_at_nothing_is_refused(
    setting: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        Knob(**setting)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": math.nan},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {3: math.nan}},
        {"logit_bias": {3: math.inf}},
    ],
    ids=str,
)
def test_a_sampling_setting_out_of_its_range_is_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        Sampling(**setting)


def test_the_ends_of_every_range_are_taken() -> None:
    Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias={0: -math.inf})
    Sampling(min_p=1.0, top_p=1e-9, repetition_penalty=1e-3, presence_penalty=-2.0)


def test_the_defaults_are_fsd_with_js_at_a_tenth() -> None:
    knob = Knob()

    assert (knob.rule, knob.divergence, knob.threshold) == ("fsd", "js", 0.1)
    assert (knob.form, knob.on_processed, knob.lookahead) == ("full", False, "adaptive")


def test_a_live_knob_holds_the_knob_it_was_last_given() -> None:
    live = LiveKnob(Knob())

    live.current = Knob(threshold=0.3)

    assert live.current.threshold == 0.3
