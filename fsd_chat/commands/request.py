"""What the options and the configuration together ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fsd_chat.catalogue import PairChoice
from fsd_chat.config import Config, ConfigError, load
from fsd_chat.engine.messages import Knob, LoadPair, ModelSource, Sampling
from fsd_chat.limits import check_knob, check_sampling, parse_threshold

S = TypeVar("S", Knob, Sampling)
NO_DRAFT = "none"


@dataclass(frozen=True)
class Request:
    config: Config
    pair: LoadPair
    knob: Knob
    sampling: Sampling


def request(given: Mapping[str, Any]) -> Request:
    """`given` holds the options that were given, and only those. Raises ConfigError."""
    config = load(given.get("config"))
    config = replace(config, system=given.get("system", config.system))
    if "target" in given:
        choice = None
        pair = LoadPair(
            name=Path(given["target"]).name or given["target"],
            target=ModelSource(location=given["target"]),
        )
    else:
        choice = config.choose_pair(given.get("pair", config.pair))
        pair = choice.load()
    return Request(
        config, _adjusted(pair, given), _knob(config, choice, given), _sampling(config, given)
    )


def _adjusted(pair: LoadPair, given: Mapping[str, Any]) -> LoadPair:
    """With the draft, device, dtype, bits and trust that the options ask for."""
    draft = pair.draft
    if "draft" in given:
        draft = None if given["draft"] == NO_DRAFT else ModelSource(location=given["draft"])
    names = ("device", "dtype", "quantize", "trust_remote_code")
    wanted = {name: given[name] for name in names if name in given}
    return msgspec.structs.replace(
        pair,
        target=msgspec.structs.replace(pair.target, **wanted),
        draft=msgspec.structs.replace(draft, **wanted) if draft else None,
    )


def _knob(config: Config, choice: PairChoice | None, given: Mapping[str, Any]) -> Knob:
    wanted = dict(given)
    if "threshold" in given:
        try:
            wanted["threshold"] = parse_threshold(given["threshold"])
        except ValueError as error:
            raise ConfigError(f"-T: {error}") from error
    return _merged(config.knob_for(choice), wanted, check_knob)


def _sampling(config: Config, given: Mapping[str, Any]) -> Sampling:
    wanted = dict(given)
    if "stop" in given:
        wanted["stop"] = tuple(given["stop"])
    if "logit_bias" in given:
        wanted["logit_bias"] = dict(given["logit_bias"])
    return _merged(config.sampling, wanted, check_sampling)


def _merged(base: S, given: Mapping[str, Any], check: Callable[[S], None]) -> S:
    fields = base.__struct_fields__
    merged = msgspec.structs.replace(
        base, **{name: given[name] for name in fields if name in given}
    )
    try:
        check(merged)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return merged
