from __future__ import annotations

import math
from typing import Any

import pytest

from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.messages import Knob, Sampling
from fsd_chat.engine.translation import decoding_knob, decoding_sampling
from fsd_chat.limits import check_knob, check_sampling, parse_threshold

BAD_KNOBS: list[dict[str, Any]] = [
    {"threshold": -0.1},
    {"threshold": math.nan},
    {"form_k": 0},
    {"form_p": 0.0},
    {"form_p": 1.1},
    {"form_p": math.nan},
    {"lookahead": "far"},
    {"lookahead": ""},
    {"lookahead": "-1"},
    {"lookahead": "1.5"},
    {"lookahead": "²"},
]
BAD_SAMPLING: list[dict[str, Any]] = [
    {"temperature": -0.1},
    {"temperature": math.nan},
    {"temperature": math.inf},
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": 1.01},
    {"min_p": -0.1},
    {"min_p": 1.1},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": math.inf},
    {"presence_penalty": math.nan},
    {"frequency_penalty": -math.inf},
    {"logit_bias": {-1: 0.5}},
    {"logit_bias": {1: math.inf}},
]


@pytest.mark.parametrize("text", ["-0.1", "-1e-9", "nan", "high", "", "0,3", "-inf", "\x1b[2J"])
def test_a_threshold_that_is_no_number_from_zero_up_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number from 0 up") as caught:
        parse_threshold(text)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), (" 0.3 ", 0.3), ("inf", math.inf)])
def test_a_threshold_from_zero_up_is_taken(text: str, value: float) -> None:
    assert parse_threshold(text) == value


@pytest.mark.parametrize("field", BAD_KNOBS)
def test_a_knob_that_the_engine_refuses_is_refused_before(field: dict[str, Any]) -> None:
    knob = Knob(**field)
    with pytest.raises(ValueError, match="must be"):
        check_knob(knob)
    with pytest.raises(EngineError):
        decoding_knob(knob)


@pytest.mark.parametrize("field", [{"rule": "fast"}, {"divergence": "hellinger"}, {"form": "half"}])
def test_a_name_that_nobody_knows_is_refused_with_those_there_are(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be one of \w+, .* not '\w+'"):
        check_knob(Knob(**field))


@pytest.mark.parametrize("field", BAD_SAMPLING)
def test_sampling_that_the_engine_refuses_is_refused_before(field: dict[str, Any]) -> None:
    sampling = Sampling(**field)
    name = next(iter(field))
    with pytest.raises(ValueError, match=f"^{name} must be"):
        check_sampling(sampling)
    with pytest.raises(EngineError):
        decoding_sampling(sampling)


@pytest.mark.parametrize(
    "field",
    [{"max_tokens": 0}, {"exact_prefix": -1}, {"seed": -1}, {"seed": 2**63}, {"stop": ("",)}],
)
def test_a_reply_that_cannot_be_asked_for_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(field))} must be"):
        check_sampling(Sampling(**field))


def test_the_defaults_can_be_obeyed() -> None:
    check_knob(Knob())
    check_sampling(Sampling())
    decoding_knob(Knob())
    decoding_sampling(Sampling())
