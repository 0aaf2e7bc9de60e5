"""The configuration file: TOML at the platform's place, read into typed values.

Everything has a default, so there need be no file. What is wrong in one is said with its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from fsd_chat.catalogue import PairChoice, catalogue, read_knob, read_pair
from fsd_chat.engine.messages import Knob, Sampling
from fsd_chat.limits import check_sampling
from fsd_chat.places import config_path
from fsd_chat.toml_file import ConfigError as ConfigError
from fsd_chat.toml_file import Key, TomlFile

DEFAULT_PAIR: Final = "smol"
DEFAULT_THEME: Final = "dusk"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What may stand at the top of the file."""

    pair: str = DEFAULT_PAIR
    """The pair that is loaded at the start."""
    theme: str = DEFAULT_THEME
    system: str = ""
    """System prompt of new chats."""
    knob: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    """Binding id → keys, comma-separated."""
    pairs: dict[str, Any] = {}


@dataclass(frozen=True)
class Config:
    path: Path
    """Where the file is, or would be."""
    pair: str = DEFAULT_PAIR
    theme: str = DEFAULT_THEME
    system: str = ""
    pairs: Mapping[str, PairChoice] = field(default_factory=dict)
    """The catalogue's and the user's own."""
    sampling: Sampling = field(default_factory=Sampling)
    knob: Mapping[str, Any] = field(default_factory=dict)
    """Only what the user has set; a pair's own defaults come between it and ours."""
    keys: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[Key, int | None] = field(default_factory=dict)
    """Every setting that the file gives, and where."""

    def knob_for(self, pair: PairChoice | None) -> Knob:
        return msgspec.structs.replace(Knob(), **{**(pair.knob if pair else {}), **self.knob})

    def choose_pair(self, name: str) -> PairChoice:
        """Raises ConfigError for a name that nobody has given."""
        if name not in self.pairs:
            raise ConfigError(f"there is no pair called {name!r}; there are {_listed(self.pairs)}")
        return self.pairs[name]


def load(path: Path | None = None) -> Config:
    """Read the file at `path`, or at its usual place if there is one. Raises ConfigError.

    A path that was asked for must exist.
    """
    where = path or config_path()
    try:
        file = TomlFile.read(where)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        if path is not None:
            raise ConfigError(f"there is no configuration file {path}") from None
        return Config(where, pairs=catalogue())
    return _read(file)


def _read(file: TomlFile) -> Config:
    found = Document(**file.table((), file.content, Document))
    own = {name: read_pair(file, ("pairs", name), entry) for name, entry in found.pairs.items()}
    pairs = {**catalogue(), **own}
    if found.pair not in pairs:
        raise file.error(("pair",), f"names no pair; there are {_listed(pairs)}")
    return Config(
        path=file.path,
        pair=found.pair,
        theme=found.theme,
        system=found.system,
        pairs=pairs,
        sampling=_sampling(file, found.sampling),
        knob=read_knob(file, ("knob",), found.knob),
        keys=_keys(file, found.keys),
        lines={key: file.line(key) for key in _keys_of(file.content)},
    )


def _sampling(file: TomlFile, entry: dict[str, Any]) -> Sampling:
    given = file.table(("sampling",), entry, Sampling)
    for key, value in given.items():
        try:
            check_sampling(Sampling(**{key: value}))
        except ValueError as error:
            raise file.error(("sampling", key), f"cannot be used: {error}") from error
    return Sampling(**given)


def _keys(file: TomlFile, keys: dict[str, Any]) -> dict[str, str]:
    for name, value in keys.items():
        if not isinstance(value, str) or not all(one.strip() for one in value.split(",")):
            raise file.error(("keys", name), 'must be keys in a string, such as "ctrl+t,f5"')
    return keys


def _keys_of(entries: Mapping[str, Any], above: Key = ()) -> list[Key]:
    found: list[Key] = []
    for name, value in entries.items():
        found.append((*above, name))
        if isinstance(value, dict):
            found += _keys_of(value, (*above, name))
    return found


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
