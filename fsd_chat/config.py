"""The configuration file: TOML at the platform's place, read into typed values.

Everything has a default, so there need be no file. What is wrong in one is said with its line.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from fsd_chat.engine.messages import Knob, LoadPair, ModelSource, Sampling
from fsd_chat.places import config_path

DEFAULT_PAIR: Final = "smol"
DEFAULT_THEME: Final = "dusk"


class ConfigError(Exception):
    """The configuration cannot be used; the message is one line: file, line, key, what to do."""


@dataclass(frozen=True)
class PairChoice:
    """A pair by name, from the catalogue or the configuration."""

    name: str
    target: ModelSource
    draft: ModelSource | None
    knob: Mapping[str, Any] = field(default_factory=dict)
    """Knob defaults of this pair."""
    target_bytes: int | None = None
    draft_bytes: int | None = None
    licence: str = ""
    note: str = ""

    def load(self) -> LoadPair:
        return LoadPair(name=self.name, target=self.target, draft=self.draft)


@dataclass(frozen=True)
class Config:
    path: Path
    """Where the file is, or would be."""
    pair: str = DEFAULT_PAIR
    theme: str = DEFAULT_THEME
    system: str = ""
    """System prompt of new chats."""
    pairs: Mapping[str, PairChoice] = field(default_factory=dict)
    """The catalogue's and the user's own."""
    sampling: Sampling = field(default_factory=Sampling)
    knob: Mapping[str, Any] = field(default_factory=dict)
    """Only what the user has set; a pair's own defaults come between it and ours."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Binding id → keys, comma-separated."""

    def knob_for(self, pair: PairChoice | None) -> Knob:
        return msgspec.structs.replace(Knob(), **{**(pair.knob if pair else {}), **self.knob})

    def choose_pair(self, name: str) -> PairChoice:
        if name not in self.pairs:
            known = ", ".join(sorted(self.pairs))
            raise ConfigError(f"there is no pair called {name!r}; known are {known}")
        return self.pairs[name]


def load(path: Path | None = None) -> Config:
    """Read the file at `path`, or at its usual place if there is one. Raises ConfigError.

    A path that was asked for must exist.
    """
    where = path or config_path()
    catalogue = _read(resources.files("fsd_chat").joinpath("catalogue.toml").read_text("utf-8"))
    known = {name: _pair(name, entry) for name, entry in catalogue.items()}
    try:
        text = where.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path is not None:
            raise ConfigError(f"there is no configuration file {path}") from None
        return Config(where, pairs=known)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    return _Reader(where, text).config(known)


def _read(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def _pair(name: str, entry: Mapping[str, Any]) -> PairChoice:
    """Raises KeyError, TypeError or msgspec.ValidationError for an entry that cannot be used."""
    shared = {key: entry[key] for key in ("device", "dtype", "trust_remote_code") if key in entry}

    def source(which: str) -> ModelSource | None:
        location = entry.get(which)
        if not location:
            return None
        own = {"location": location, "revision": entry.get(f"{which}_revision")}
        for key in ("device", "dtype"):
            if f"{which}_{key}" in entry:
                own[key] = entry[f"{which}_{key}"]
        return msgspec.convert({**shared, **own}, ModelSource)

    target = source("target")
    if target is None:
        raise KeyError("target")
    return PairChoice(
        name=name,
        target=target,
        draft=source("draft"),
        knob=_knob_settings(entry.get("knob", {})),
        target_bytes=entry.get("target_bytes"),
        draft_bytes=entry.get("draft_bytes"),
        licence=entry.get("licence", ""),
        note=entry.get("note", ""),
    )


def _knob_settings(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Checked, but only those that were given."""
    entry = {key: str(one) if key == "lookahead" else one for key, one in entry.items()}
    unknown = set(entry) - set(Knob.__struct_fields__)
    if unknown:
        raise ValueError(f"no setting is called {sorted(unknown)[0]!r}")
    check_knob(msgspec.convert(entry, Knob))
    return dict(entry)


def show(config: Config) -> str:
    """The values in force as TOML; `#` before those that nobody has set."""
    lines = [f"# {config.path}", ""]
    for name in ("pair", "theme", "system"):
        default = getattr(Config(config.path), name)
        lines.append(_setting(name, getattr(config, name), default))
    knob = msgspec.structs.asdict(config.knob_for(config.pairs.get(config.pair)))
    sampling = msgspec.structs.asdict(config.sampling)
    for table, values, defaults in (
        ("knob", knob, msgspec.structs.asdict(Knob())),
        ("sampling", sampling, msgspec.structs.asdict(Sampling())),
    ):
        lines += ["", f"[{table}]"]
        lines += [_setting(name, value, defaults[name]) for name, value in values.items()]
    if config.keys:
        lines += ["", "[keys]", *(f"{name} = {_toml(keys)}" for name, keys in config.keys.items())]
    return "\n".join(lines) + "\n"


def _setting(name: str, value: Any, default: Any) -> str:
    line = f"{name} = {_toml(value)}" if value is not None else f"{name} ="
    return f"# {line}" if value == default else line


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_toml(one)}' for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    # JSON's strings, numbers and booleans are TOML's.
    return json.dumps(value, ensure_ascii=True)


_ALLOWED = {
    "pair": str,
    "theme": str,
    "system": str,
    "pairs": dict,
    "sampling": dict,
    "knob": dict,
    "keys": dict,
}
_PAIR_KEYS = {
    "target",
    "draft",
    "device",
    "dtype",
    "trust_remote_code",
    "target_revision",
    "draft_revision",
    "target_device",
    "draft_device",
    "target_dtype",
    "draft_dtype",
    "knob",
    "note",
    "licence",
    "target_bytes",
    "draft_bytes",
}


class _Reader:
    """Reads one file; knows where in it a key stands."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    def config(self, known: Mapping[str, PairChoice]) -> Config:
        try:
            found = _read(self.text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{self.path}: {_lower_first(str(error))}") from error
        for key, value in found.items():
            if key not in _ALLOWED:
                raise self.error((key,), f"is no setting; there are {', '.join(_ALLOWED)}")
            if not isinstance(value, _ALLOWED[key]):
                raise self.error((key,), f"must be a {_noun(_ALLOWED[key])}, not {value!r}")
        pairs = {**known, **{name: self._pair(name, one) for name, one in _items(found, "pairs")}}
        config = Config(
            path=self.path,
            pair=found.get("pair", DEFAULT_PAIR),
            theme=found.get("theme", DEFAULT_THEME),
            system=found.get("system", ""),
            pairs=pairs,
            sampling=self._sampling(dict(_items(found, "sampling"))),
            knob=self._knob(dict(_items(found, "knob"))),
            keys=self._keys(dict(_items(found, "keys"))),
        )
        if config.pair not in pairs:
            known_names = ", ".join(sorted(pairs))
            raise self.error(("pair",), f"names no pair; known are {known_names}")
        return config

    def _pair(self, name: str, entry: Any) -> PairChoice:
        where = ("pairs", name)
        if not isinstance(entry, dict):
            raise self.error(where, "must be a table with a target and a draft")
        for key in entry:
            if key not in _PAIR_KEYS:
                raise self.error((*where, key), f"is no setting; there are {_names(_PAIR_KEYS)}")
        try:
            return _pair(name, entry)
        except KeyError:
            raise self.error(where, "needs a target") from None
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise self.error(where, f"cannot be used: {_lower_first(str(error))}") from error

    def _sampling(self, entry: dict[str, Any]) -> Sampling:
        for key in entry:
            if key not in Sampling.__struct_fields__:
                names = _names(Sampling.__struct_fields__)
                raise self.error(("sampling", key), f"is no setting; there are {names}")
            try:
                check_sampling(msgspec.convert({key: entry[key]}, Sampling, strict=False))
            except (msgspec.ValidationError, ValueError) as error:
                raise self.error(("sampling", key), _lower_first(str(error))) from error
        return msgspec.convert(entry, Sampling, strict=False)

    def _knob(self, entry: dict[str, Any]) -> dict[str, Any]:
        for key in entry:
            if key not in Knob.__struct_fields__:
                names = _names(Knob.__struct_fields__)
                raise self.error(("knob", key), f"is no setting; there are {names}")
            try:
                _knob_settings({key: entry[key]})
            except (msgspec.ValidationError, ValueError) as error:
                raise self.error(("knob", key), _lower_first(str(error))) from error
        return _knob_settings(entry)

    def _keys(self, entry: dict[str, Any]) -> dict[str, str]:
        for key, value in entry.items():
            if not isinstance(value, str) or not value.strip():
                raise self.error(("keys", key), 'must be keys in a string, such as "ctrl+t,f5"')
        return entry

    def error(self, key: tuple[str, ...], problem: str) -> ConfigError:
        line = self._line(key)
        at = "" if line is None else f", line {line}"
        return ConfigError(f"{self.path}{at}: {'.'.join(key)} {problem}")

    def _line(self, key: tuple[str, ...]) -> int | None:
        """Where `key` stands; tomllib keeps no positions, so the text is looked through."""
        table: tuple[str, ...] = ()
        for number, line in enumerate(self.text.splitlines(), start=1):
            header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
            if header:
                table = _split(header.group(1))
                if table == key:
                    return number
            else:
                name = re.match(r"\s*([^=#]+?)\s*=", line)
                if name and (*table, *_split(name.group(1))) == key:
                    return number
        return None


def _split(dotted: str) -> tuple[str, ...]:
    found = re.findall(r'"([^"]*)"|\'([^\']*)\'|([^.\s]+)', dotted)
    return tuple(next(one for one in group if one) for group in found)


def _items(found: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    return list(found.get(key, {}).items())


def _names(keys: Any) -> str:
    return ", ".join(sorted(keys))


def _noun(kind: type) -> str:
    return "table" if kind is dict else "string"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def check_knob(knob: Knob) -> None:
    """Raises ValueError for a knob that no engine could obey."""
    check_threshold(knob.threshold)
    if knob.lookahead not in ("adaptive", "paper", "heuristic") and not knob.lookahead.isdigit():
        raise ValueError(
            "lookahead must be adaptive, paper, heuristic or a number of tokens, "
            f"not {knob.lookahead!r}"
        )
    if knob.form_k < 1:
        raise ValueError(f"form_k must be 1 or more, not {knob.form_k}")
    if not 0 < knob.form_p <= 1:
        raise ValueError(f"form_p must be above 0 and at most 1, not {knob.form_p}")


def check_threshold(threshold: float) -> None:
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
    """Raises ValueError naming the setting that is out of range."""
    ranges = {
        "temperature": (0 <= sampling.temperature < math.inf, "0 or more"),
        "top_k": (sampling.top_k >= 0, "0 or more"),
        "top_p": (0 < sampling.top_p <= 1, "above 0 and at most 1"),
        "min_p": (0 <= sampling.min_p <= 1, "from 0 to 1"),
        "repetition_penalty": (0 < sampling.repetition_penalty < math.inf, "above 0"),
        "presence_penalty": (math.isfinite(sampling.presence_penalty), "a number"),
        "frequency_penalty": (math.isfinite(sampling.frequency_penalty), "a number"),
        "max_tokens": (sampling.max_tokens >= 1, "1 or more"),
        "exact_prefix": (sampling.exact_prefix >= 0, "0 or more"),
        "seed": (sampling.seed is None or 0 <= sampling.seed < 2**63, "from 0 to 2^63 - 1"),
        "stop": (all(sampling.stop), "strings that are not empty"),
    }
    for name, (good, wanted) in ranges.items():
        if not good:
            raise ValueError(f"{name} must be {wanted}, not {getattr(sampling, name)}")
