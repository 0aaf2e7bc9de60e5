"""A TOML file that people write: what is wrong in it is said with its line and what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

Key = tuple[str, ...]
"""A setting by its tables: `("knob", "threshold")`."""


class ConfigError(Exception):
    """A file or an option cannot be used; the message is one line: where, what, what to do."""


class TomlFile:
    def __init__(self, path: Path, text: str) -> None:
        """Raises ConfigError for text that is no TOML."""
        self.path = path
        self._text = text
        try:
            self.content: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(_syntax(path, text, str(error))) from error

    @classmethod
    def read(cls, path: Path) -> TomlFile:
        """The file at `path`. Raises ConfigError, caused by FileNotFoundError if there is none."""
        try:
            # Some editors on Windows begin a file with a byte order mark.
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise ConfigError(f"{path}, line {line}: is not UTF-8 text") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
        return cls(path, text)

    def table(
        self, where: Key, entry: object, kind: type[msgspec.Struct], without: Iterable[str] = ()
    ) -> dict[str, Any]:
        """`entry` as the fields of `kind`, only those that are given. Raises ConfigError."""
        if not isinstance(entry, Mapping):
            raise self.error(where, f"must be a table, not {_shown(entry)}")
        hints = {key: one for key, one in get_type_hints(kind).items() if key not in set(without)}
        for key in entry:
            if key not in hints:
                raise self.error((*where, key), f"is no setting; there are {_names(hints)}")
        return {
            key: self._converted((*where, key), value, hints[key]) for key, value in entry.items()
        }

    def _converted(self, key: Key, value: object, hint: Any) -> Any:
        try:
            # TOML's own keys are strings, whatever they stand for.
            return msgspec.convert(value, hint, str_keys=True)
        except msgspec.ValidationError:
            raise self.error(key, f"must be {wanted(hint)}, not {_shown(value)}") from None

    def error(self, key: Key, problem: str) -> ConfigError:
        line = self.line(key)
        at = "" if line is None else f", line {line}"
        return ConfigError(f"{self.path}{at}: {'.'.join(key)} {problem}")

    def line(self, key: Key) -> int | None:
        """Where `key` stands, or else the table around it.

        tomllib keeps no positions, so the text is looked through; what it cannot find there (a key
        inside an inline table) is found by its parent.
        """
        lines = self._lines()
        return next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), None)

    def _lines(self) -> dict[Key, int]:
        found: dict[Key, int] = {}
        table: Key = ()
        for number, line in enumerate(self._text.splitlines(), start=1):
            if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
                table = _split(header.group(1))
                found.setdefault(table, number)
            elif name := re.match(r"\s*([^=#]+?)\s*=", line):
                found.setdefault((*table, *_split(name.group(1))), number)
        return found


def _syntax(path: Path, text: str, said: str) -> str:
    """tomllib puts the place at the end: `Invalid value (at line 3, column 5)`."""
    problem, _, place = said.partition(" (at ")
    line = re.match(r"line (\d+)", place)
    number = line.group(1) if line else max(1, len(text.splitlines()))
    return f"{path}, line {number}: {problem[:1].lower()}{problem[1:]}"


def _split(dotted: str) -> Key:
    found = re.findall(r'"([^"]*)"|\'([^\']*)\'|([^.\s]+)', dotted)
    return tuple(next((one for one in group if one), "") for group in found)


def wanted(hint: Any) -> str:
    """A type in words for people: what a value may be."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(wanted(one) for one in get_args(hint) if one is not NoneType)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
        tuple[str, ...]: "a list of strings",
        dict[int, float]: "token ids with numbers, such as { 42 = -1.5 }",
    }.get(hint, "a table")


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _names(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))
