"""Where models are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Where converted models lie: FSD_CHAT_CACHE, or the platform's place for caches."""
    chosen = os.environ.get("FSD_CHAT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("fsd-chat", appauthor=False)
