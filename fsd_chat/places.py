"""Where things are kept: the platform's folders, each of which the environment can move."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP = "fsd-chat"
EMBEDDED = "smol-v4"
"""Folder of the converted embedded pair; renamed when what it holds changes: the conversion, or
the draft."""


def config_path() -> Path:
    """FSD_CHAT_CONFIG, or `config.toml` at the platform's place."""
    return _chosen("FSD_CHAT_CONFIG") or (
        platformdirs.user_config_path(APP, appauthor=False) / "config.toml"
    )


def data_folder() -> Path:
    """Where chats are kept: FSD_CHAT_DATA, or the platform's place."""
    return _chosen("FSD_CHAT_DATA") or platformdirs.user_data_path(APP, appauthor=False)


def cache_folder() -> Path:
    """Where converted models lie: FSD_CHAT_CACHE, or the platform's place."""
    return _chosen("FSD_CHAT_CACHE") or platformdirs.user_cache_path(APP, appauthor=False)


def embedded_home() -> Path:
    """The embedded pair, as folders `target` and `draft`; there once it has been converted."""
    return cache_folder() / EMBEDDED


def theme_folders() -> list[Path]:
    """The shipped themes, in the installed package or beside it in a checkout; then the user's,
    beside the configuration file."""
    package = Path(__file__).parent
    inside = package / "themes"
    shipped = inside if inside.is_dir() else package.parent / "themes"
    return [shipped, config_path().parent / "themes"]


def theme_file(name: str) -> Path | None:
    """The file of the theme called `name`, the user's before the shipped one."""
    if Path(name).name != name:
        return None
    files = (folder / f"{name}.toml" for folder in reversed(theme_folders()))
    return next((file for file in files if file.is_file()), None)


def _chosen(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
