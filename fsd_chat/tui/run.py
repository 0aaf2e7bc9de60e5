"""Starts the app with everything it needs."""

from __future__ import annotations

import gc
import sys

from fsd_chat.chats.store import ChatStore, StoreError
from fsd_chat.config import Config
from fsd_chat.engine.client import EngineClient
from fsd_chat.engine.messages import Knob, LoadPair, Sampling
from fsd_chat.places import data_folder, theme_folders
from fsd_chat.tui.app import ChatApp
from fsd_chat.tui.terminal_keys import tell_alt_keys_apart
from fsd_chat.tui.themes import load_themes


def run_app(config: Config, pair: LoadPair, knob: Knob, sampling: Sampling, theme: str) -> int:
    """Run until the user quits; returns the exit status."""
    notices = []
    try:
        store = ChatStore(data_folder() / "chats.db")
    except StoreError as error:
        store = ChatStore(None)
        notices.append(f"{error}. This chat is kept in memory only; /save writes it to a file")
    tell_alt_keys_apart()
    themes = load_themes(theme_folders())
    app = ChatApp(config, store, EngineClient, pair, knob, sampling, themes, notices)
    app.begin_with_theme(theme)
    app.run()
    # The process is over. Collecting what it holds would take longer than all the rest of leaving.
    gc.freeze()
    lost = store.close()
    if lost:
        print(f"fsd-chat: {lost}", file=sys.stderr)
        return 1
    return app.return_code or 0
