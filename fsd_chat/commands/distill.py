"""`fsd-chat distill`: hands the work to a process of its own, which may import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsd_chat.commands.child import run_module
from fsd_chat.config import ConfigError

HOURS = 1.0
"""Unless --hours or --tokens says otherwise."""
AT_LEAST = {"tokens": 1, "passes": 1, "batch": 1, "head": 0}


def distill(given: Mapping[str, Any]) -> int:
    """Returns the exit status. Raises ConfigError for an option that makes no sense."""
    _check(given)
    names = ("tokens", "layers", "head", "passes", "batch", "seed", "device", "dtype")
    recipe = {name: given[name] for name in (*names, "trust_remote_code") if name in given}
    recipe["out"] = str(given["out"].absolute())
    if "tokens" not in given:
        recipe["hours"] = given.get("hours", HOURS)
    if "prompts" in given:
        recipe["prompts"] = str(given["prompts"].absolute())
    for name in ("target", "start"):
        if name in given:
            here = Path(given[name])
            recipe[name] = str(here.absolute()) if here.exists() else given[name]
    recipe["features"] = "no_features" not in given
    order = json.dumps({"recipe": recipe, "further": "further" in given})
    return run_module("fsd_chat.distill", order)


def _check(given: Mapping[str, Any]) -> None:
    hours = given.get("hours", HOURS)
    if not 0 < hours < float("inf"):
        raise ConfigError(f"--hours is a number above 0, not {hours:g}")
    for name, least in AT_LEAST.items():
        if given.get(name, least) < least:
            raise ConfigError(f"--{name} is {least} or more, not {given[name]}")
