"""Themes are TOML files. Each becomes a theme of Textual's, or one line saying why it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from textual.color import Color, ColorParseError
from textual.css.constants import VALID_STYLE_FLAGS
from textual.theme import Theme

from fsd_chat.toml_file import ConfigError, TomlFile

COLOURS = (
    "background",
    "surface",
    "panel",
    "foreground",
    "primary",
    "secondary",
    "accent",
    "success",
    "warning",
    "error",
)
"""What Textual itself asks of a theme."""

TOKEN_COLOURS = (
    "origin-fuzzy",
    "origin-recovered",
    "origin-accepted",
    "origin-target",
    "origin-bonus",
)
GAUGE_COLOURS = ("gauge", "gauge-rest")

_REQUIRED = ("dark", *COLOURS, *TOKEN_COLOURS, *GAUGE_COLOURS)
_KNOWN = (*_REQUIRED, "variables")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""Textual makes a style class of a theme's name."""
_SHARE = re.compile(r"\s+\d+(\.\d+)?%$")


@dataclass(frozen=True)
class ThemeProblem:
    """A theme file that cannot be used."""

    path: Path
    message: str
    """One line: the file, the line in it where there is one, what is wrong, what is allowed."""

    def __str__(self) -> str:
        return f"theme {self.message}"


@dataclass(frozen=True)
class Loaded:
    themes: list[Theme] = field(default_factory=list)
    problems: list[ThemeProblem] = field(default_factory=list)


def load_themes(folders: Iterable[Path]) -> Loaded:
    """Every theme in `folders`, which need not exist.

    A theme in a later folder takes the place of one with the same name; a file that cannot be used
    takes nobody's place.
    """
    themes: dict[str, Theme] = {}
    problems = []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            try:
                themes[path.stem] = read_theme(path)
            except ConfigError as error:
                problems.append(ThemeProblem(path, str(error)))
    return Loaded(list(themes.values()), problems)


def read_theme(path: Path) -> Theme:
    """The theme in one file, called as the file is. Raises ConfigError."""
    if not _NAME.fullmatch(path.stem):
        raise ConfigError(
            f"{path}: a theme is called as its file is, so that must be letters, digits, - and _"
        )
    return _theme(TomlFile.read(path))


def _theme(file: TomlFile) -> Theme:
    _check_keys(file)
    dark = file.content["dark"]
    if not isinstance(dark, bool):
        raise file.error(("dark",), f"must be true or false, not {dark!r}")
    colours = {key: _colour(file, key) for key in (*COLOURS, *TOKEN_COLOURS, *GAUGE_COLOURS)}
    own = {key: colours.pop(key).hex for key in (*TOKEN_COLOURS, *GAUGE_COLOURS)}
    # The terminal's own colours reach the terminal as such only in a theme that is all theirs.
    ansi = colours["background"].ansi is not None
    shades = _terminal_shades(colours) if ansi else _shades(colours)
    theme = Theme(
        name=file.path.stem,
        dark=dark,
        ansi=ansi,
        background=colours["background"].hex,
        surface=colours["surface"].hex,
        panel=colours["panel"].hex,
        foreground=colours["foreground"].hex,
        primary=colours["primary"].hex,
        secondary=colours["secondary"].hex,
        accent=colours["accent"].hex,
        success=colours["success"].hex,
        warning=colours["warning"].hex,
        error=colours["error"].hex,
        variables={**shades, **own},
    )
    return _with_variables(theme, file) if "variables" in file.content else theme


def _check_keys(file: TomlFile) -> None:
    for key in file.content:
        if key not in _KNOWN:
            raise file.error((key,), f"is no setting of a theme{_instead(key, _KNOWN)}")
    missing = [key for key in _REQUIRED if key not in file.content]
    if missing:
        raise ConfigError(f"{file.path} lacks {', '.join(missing)}")


def _instead(key: str, known: Iterable[str]) -> str:
    close = get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "; the README beside the themes lists them"


def _colour(file: TomlFile, key: str) -> Color:
    value = file.content[key]
    if isinstance(value, str):
        try:
            return Color.parse(value)
        except (ColorParseError, ValueError):
            pass
    raise file.error((key,), f'must be a colour such as "#7a4a1f", not {value!r}')


def _shades(colours: Mapping[str, Color]) -> dict[str, str]:
    """What Textual would else derive in black and white: code, muted text, cursors, bars.

    Each colour was chosen to be read on the background, so the background is read on it.
    """
    background, panel = colours["background"], colours["panel"].hex
    foreground, primary = colours["foreground"], colours["primary"]
    named = ("primary", "secondary", "accent", "success", "warning", "error")
    return {
        **{f"text-{name}": colours[name].hex for name in named},
        "text-muted": foreground.blend(background, 0.22).hex,
        "text-disabled": foreground.blend(background, 0.35).hex,
        "block-cursor-foreground": background.hex,
        "block-cursor-blurred-background": background.blend(primary, 0.14).hex,
        "button-color-foreground": background.hex,
        "border-blurred": panel,
        "scrollbar": panel,
        "scrollbar-hover": primary.hex,
        "scrollbar-background": background.hex,
        "input-selection-background": primary.with_alpha(0.3).hex,
        "screen-selection-background": primary.with_alpha(0.3).hex,
    }


def _terminal_shades(colours: Mapping[str, Color]) -> dict[str, str]:
    """The same where nothing can be mixed."""
    plain = colours["foreground"].hex
    return {
        "surface": colours["surface"].hex,
        "panel": colours["panel"].hex,
        "ansi-background": colours["background"].hex,
        "ansi-foreground": plain,
        "surface-active": colours["surface"].hex,
        "foreground-disabled": plain,
        "border": colours["primary"].hex,
        "border-blurred": plain,
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": colours["secondary"].hex,
        "block-cursor-blurred-foreground": "ansi_black",
        "block-cursor-blurred-background": colours["secondary"].hex,
        "input-selection-foreground": "ansi_black",
        "input-selection-background": colours["secondary"].hex,
        "screen-selection-foreground": "ansi_black",
        "screen-selection-background": colours["secondary"].hex,
        **{f"markdown-h{level}-color": colours["primary"].hex for level in (1, 2, 3)},
        "scrollbar": "ansi_bright_black",
        "scrollbar-hover": colours["primary"].hex,
        "scrollbar-background": colours["background"].hex,
    }


def _with_variables(theme: Theme, file: TomlFile) -> Theme:
    given = file.content["variables"]
    if not isinstance(given, dict):
        raise file.error(("variables",), "must be a table, written [variables]")
    known = theme.to_color_system().generate()
    for name, value in given.items():
        if name not in known:
            raise file.error(
                ("variables", name), f"is no variable of Textual's{_instead(name, known)}"
            )
        _check_value(file, name, value)
    changed = replace(theme, variables={**theme.variables, **given})
    try:
        # Some variables are mixed from others, which takes a plain colour.
        changed.to_color_system().generate()
    except ColorParseError as error:
        raise file.error(("variables",), f"cannot be mixed: {error}") from error
    return changed


def _check_value(file: TomlFile, name: str, value: object) -> None:
    key = ("variables", name)
    if name.endswith("style"):
        if not isinstance(value, str) or not set(value.split()) <= VALID_STYLE_FLAGS:
            raise file.error(key, f'must be a style such as "bold" or "none", not {value!r}')
        return
    colour = _SHARE.sub("", value) if isinstance(value, str) else ""
    try:
        if colour != "auto":
            Color.parse(colour)
    except (ColorParseError, ValueError):
        wanted = 'a colour such as "#7a4a1f" or "#7a4a1f 30%"'
        raise file.error(key, f"must be {wanted}, not {value!r}") from None
