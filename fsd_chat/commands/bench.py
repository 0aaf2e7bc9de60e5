"""`fsd-chat bench`: hands the measuring to a process of its own, which may import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from fsd_chat.commands.child import run_module
from fsd_chat.commands.request import request
from fsd_chat.config import ConfigError

AT_LEAST = {"conversations": 1, "prompts": 1, "lookahead": 1, "threshold": 0}


def bench(given: Mapping[str, Any]) -> int:
    """Returns the exit status. Raises ConfigError for an option that makes no sense."""
    for name, least in AT_LEAST.items():
        if not given.get(name, least) >= least:
            raise ConfigError(f"--{name} is {least} or more, not {given[name]}")
    own = {name: given[name] for name in AT_LEAST if name in given}
    others = {name: value for name, value in given.items() if name not in AT_LEAST}
    pair = request(others).pair
    order = {"pair": msgspec.to_builtins(pair), "as_json": "json" in given, **own}
    return run_module("fsd_chat.measure.bench", json.dumps(order))
