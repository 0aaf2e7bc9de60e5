"""`fsd-chat bench`: hands the measuring to a process of its own, which may import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from fsd_chat.commands.child import run_module
from fsd_chat.commands.request import request
from fsd_chat.config import ConfigError
from fsd_chat.limits import parse_threshold

AT_LEAST = {"conversations": 1, "prompts": 1, "lookahead": 1}


def bench(given: Mapping[str, Any]) -> int:
    """Returns the exit status. Raises ConfigError for an option that makes no sense."""
    for name, least in AT_LEAST.items():
        if not given.get(name, least) >= least:
            raise ConfigError(f"--{name} is {least} or more, not {given[name]}")
    thresholds = _thresholds(given["threshold"]) if "threshold" in given else None
    own = {name: given[name] for name in ("conversations", "prompts") if name in given}
    left_out = (*AT_LEAST, "threshold")
    asked = request({name: value for name, value in given.items() if name not in left_out})
    order = {
        "pair": msgspec.to_builtins(asked.pair),
        "as_json": "json" in given,
        "thresholds": thresholds or [asked.knob.threshold],
        "lookahead": str(given.get("lookahead", asked.knob.lookahead)),
        **own,
    }
    return run_module("fsd_chat.measure.bench", json.dumps(order))


def _thresholds(text: str) -> list[float]:
    try:
        return [parse_threshold(one) for one in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"-T: {error}") from error
