"""Themes are TOML files; a broken one is reported and left out, never fatal."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

COLOURS = (
    "primary",
    "secondary",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
    "success",
    "warning",
    "error",
)
TOKEN_COLOURS = (
    "origin-accepted",
    "origin-fuzzy",
    "origin-recovered",
    "origin-bonus",
    "origin-target",
)
GAUGE_COLOURS = ("gauge", "gauge-rest")
KNOWN = {"name", "dark", "about", "variables", *COLOURS, *TOKEN_COLOURS, *GAUGE_COLOURS}


class ThemeError(Exception):
    """A theme file cannot be used; the message is one line."""


@dataclass(frozen=True)
class ThemeProblem:
    path: Path
    message: str

    def __str__(self) -> str:
        return f"theme {self.path}: {self.message}"


@dataclass
class Loaded:
    themes: list[Theme] = field(default_factory=list)
    problems: list[ThemeProblem] = field(default_factory=list)


def load_themes(folders: Sequence[Path]) -> Loaded:
    """Every theme in `folders`; one in a later folder replaces one of the same name."""
    loaded = Loaded()
    found: dict[str, Theme] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            try:
                theme = read_theme(path)
            except ThemeError as error:
                loaded.problems.append(ThemeProblem(path, str(error)))
            else:
                found[theme.name] = theme
    loaded.themes = list(found.values())
    return loaded


def read_theme(path: Path) -> Theme:
    """Raises ThemeError naming what is wrong in the file and what is allowed."""
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ThemeError(f"no TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ThemeError(f"cannot be read: {error}") from error
    return parse_theme(entry, default_name=path.stem)


def parse_theme(entry: dict[str, Any], default_name: str) -> Theme:
    unknown = sorted(set(entry) - KNOWN)
    if unknown:
        raise ThemeError(f"{unknown[0]!r} is no setting of a theme; see themes/README.md")
    missing = [name for name in (*COLOURS, *TOKEN_COLOURS, *GAUGE_COLOURS) if name not in entry]
    if missing:
        raise ThemeError(f"lacks {', '.join(missing)}")
    dark = entry.get("dark", True)
    name = entry.get("name", default_name)
    if not isinstance(dark, bool) or not isinstance(name, str) or not name:
        raise ThemeError("name must be a word, and dark true or false")
    extra = entry.get("variables", {})
    if not isinstance(extra, dict) or not all(isinstance(one, str) for one in extra.values()):
        raise ThemeError("[variables] must be names with strings")
    colours: dict[str, Any] = {key: _colour(key, entry[key]) for key in COLOURS}
    own = {key: _colour(key, entry[key]) for key in (*TOKEN_COLOURS, *GAUGE_COLOURS)}
    theme = Theme(name=name, dark=dark, variables={**extra, **own}, primary=colours["primary"])
    return replace(theme, **colours)


def _colour(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ThemeError(f'{key} must be a colour such as "#1e1e2e", not {value!r}')
    try:
        Color.parse(value)
    except ColorParseError:
        raise ThemeError(f"{key} = {value!r} is no colour") from None
    return value
