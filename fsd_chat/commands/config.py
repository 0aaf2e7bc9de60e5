"""`fsd-chat config show`: what is in force, and who has said so."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fsd_chat.catalogue import PairChoice
from fsd_chat.config import Config
from fsd_chat.places import cache_folder, data_folder
from fsd_chat.toml_file import Key


def show(config: Config) -> str:
    """The values in force as TOML that gives the same configuration again."""
    there = "" if config.path.exists() else " (there is none)"
    lines = [
        f"# configuration: {config.path}{there}",
        f"# chats: {data_folder()}",
        f"# converted models: {cache_folder()}",
        "",
    ]
    for name in ("pair", "theme", "system"):
        lines.append(_setting(config, (name,), getattr(config, name)))
    pair = config.pairs.get(config.pair)
    lines += _table(config, ("knob",), msgspec.structs.asdict(config.knob_for(pair)), pair)
    lines += _table(config, ("sampling",), msgspec.structs.asdict(config.sampling))
    if config.keys:
        lines += _table(config, ("keys",), config.keys)
    for name, one in config.pairs.items():
        if ("pairs", name) in config.lines:
            lines += _table(config, ("pairs", name), _given(one))
    return "\n".join([*lines, "", "# all pairs: fsd-chat pairs"]) + "\n"


def _given(pair: PairChoice) -> dict[str, Any]:
    given = msgspec.to_builtins(pair)
    return {key: value for key, value in given.items() if key != "name"}


def _table(
    config: Config, where: Key, values: Mapping[str, Any], pair: PairChoice | None = None
) -> Iterator[str]:
    yield ""
    yield f"[{'.'.join(_key(part) for part in where)}]"
    for name, value in values.items():
        yield _setting(config, (*where, name), value, pair)


def _setting(config: Config, key: Key, value: Any, pair: PairChoice | None = None) -> str:
    if key in config.lines:
        said = f"line {config.lines[key]}"
    elif pair is not None and key[-1] in pair.knob:
        said = f"of the pair {pair.name}"
    else:
        said = "default"
    if value is None:
        # TOML has no word for nothing.
        return f"# {_key(key[-1])} is not set"
    return f"{_key(key[-1])} = {_toml(value)}  # {said}"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = (f"{_key(str(key))} = {_toml(one)}" for key, one in value.items())
        return f"{{ {', '.join(inside)} }}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON's strings, numbers and booleans are TOML's, all but one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
