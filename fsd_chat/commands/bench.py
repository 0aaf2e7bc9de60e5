"""`fsd-chat bench`: hands the measuring to a process of its own, which may import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from fsd_chat.commands.child import run_module
from fsd_chat.commands.request import request
from fsd_chat.config import ConfigError
from fsd_chat.engine.messages import QUANTIZATIONS
from fsd_chat.limits import parse_threshold

TRANSFORMERS = "transformers"
AT_LEAST = {"conversations": 1, "prompts": 1, "lookahead": 1}


def bench(given: Mapping[str, Any]) -> int:
    """Returns the exit status. Raises ConfigError for an option that makes no sense."""
    for name, least in AT_LEAST.items():
        if not given.get(name, least) >= least:
            raise ConfigError(f"--{name} is {least} or more, not {given[name]}")
    thresholds = _thresholds(given["threshold"]) if "threshold" in given else None
    own = {name: given[name] for name in ("conversations", "prompts") if name in given}
    peers = _peers(given["against"]) if "against" in given else []
    left_out = (*AT_LEAST, "threshold", "against")
    asked = request({name: value for name, value in given.items() if name not in left_out})
    order = {
        "pair": msgspec.to_builtins(asked.pair),
        "as_json": "json" in given,
        "thresholds": thresholds or [asked.knob.threshold],
        "lookahead": str(given.get("lookahead", asked.knob.lookahead)),
        "transformers": TRANSFORMERS in peers,
        "bits": [one for one in peers if one != TRANSFORMERS],
        **own,
    }
    return run_module("fsd_chat.measure.bench", json.dumps(order))


def _peers(text: str) -> list[str]:
    known = (TRANSFORMERS, *QUANTIZATIONS)
    found = list(dict.fromkeys(one.strip() for one in text.split(",")))
    for one in found:
        if one not in known:
            raise ConfigError(f"--against takes some of {', '.join(known)}, not {one!r}")
    return found


def _thresholds(text: str) -> list[float]:
    try:
        return [parse_threshold(one) for one in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"-T: {error}") from error
