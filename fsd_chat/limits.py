"""Which settings can be obeyed: checked where they are given, before any engine sees them."""

from __future__ import annotations

import math
from typing import Final

from fsd_chat.engine.messages import DIVERGENCES, FORMS, RULES, Knob, Sampling

LOOKAHEADS: Final = ("adaptive", "paper", "heuristic")
"""Policies for the draft length; a number of tokens is the fourth possibility."""
SEEDS: Final = 2**63


def check_knob(knob: Knob) -> None:
    """Raises ValueError, in one line, for a knob that no engine could obey."""
    for name, known in (("rule", RULES), ("divergence", DIVERGENCES), ("form", FORMS)):
        value = getattr(knob, name)
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    check_threshold(knob.threshold)
    if knob.lookahead not in LOOKAHEADS and not _is_count(knob.lookahead):
        raise ValueError(
            f"lookahead must be {', '.join(LOOKAHEADS)} or a number of tokens, "
            f"not {knob.lookahead!r}"
        )
    if knob.form_k < 1:
        raise ValueError(f"form_k must be 1 or more, not {knob.form_k}")
    if not 0 < knob.form_p <= 1:
        raise ValueError(f"form_p must be above 0 and at most 1, not {knob.form_p:g}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def check_threshold(threshold: float) -> None:
    """Raises ValueError for a T that is below zero or not a number."""
    if math.isnan(threshold) or threshold < 0:
        raise ValueError(f"the threshold T must be a number from 0 up, not {threshold:g}")


def parse_threshold(text: str) -> float:
    """T as people type it. Raises ValueError with one line."""
    try:
        threshold = float(text)
    except ValueError:
        raise ValueError(f"the threshold T must be a number from 0 up, not {text!r}") from None
    check_threshold(threshold)
    return threshold


def check_sampling(sampling: Sampling) -> None:
    """Raises ValueError, in one line, naming the setting that is out of range."""
    biases = sampling.logit_bias.items()
    ranges = {
        "temperature": (0 <= sampling.temperature < math.inf, "0 or more"),
        "top_k": (sampling.top_k >= 0, "0 or more"),
        "top_p": (0 < sampling.top_p <= 1, "above 0 and at most 1"),
        "min_p": (0 <= sampling.min_p <= 1, "from 0 to 1"),
        "repetition_penalty": (0 < sampling.repetition_penalty < math.inf, "above 0"),
        "presence_penalty": (math.isfinite(sampling.presence_penalty), "a finite number"),
        "frequency_penalty": (math.isfinite(sampling.frequency_penalty), "a finite number"),
        "max_tokens": (sampling.max_tokens >= 1, "1 or more"),
        "exact_prefix": (sampling.exact_prefix >= 0, "0 or more"),
        "seed": (sampling.seed is None or 0 <= sampling.seed < SEEDS, "from 0 to 2^63 - 1"),
        "stop": (all(sampling.stop), "strings that are not empty"),
        "logit_bias": (
            all(token >= 0 and not math.isnan(bias) and bias < math.inf for token, bias in biases),
            "token ids from 0 up with numbers, -inf to forbid a token",
        ),
    }
    for name, (good, wanted) in ranges.items():
        if not good:
            raise ValueError(f"{name} must be {wanted}, not {getattr(sampling, name)}")
