"""Where an engine's own output goes: one file per engine, the newest few are kept."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path

import platformdirs

KEPT = 5
_PATTERN = "engine-*.log"


def log_folder() -> Path:
    """The platform's place for logs, or `logs` below FSD_CHAT_DATA."""
    data = os.environ.get("FSD_CHAT_DATA")
    if data:
        return Path(data).expanduser() / "logs"
    return platformdirs.user_log_path("fsd-chat", appauthor=False)


def new_log() -> Path:
    """An empty log file; older ones beyond the newest KEPT are deleted.

    In a temporary folder where the log folder cannot be written: an engine that runs without a
    proper log is better than none. Raises OSError if there is no such folder either.
    """
    try:
        return _create(log_folder())
    except OSError:
        return _create(Path(tempfile.gettempdir()) / f"fsd-chat-{os.getpid()}")


def _create(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    log = folder / f"engine-{stamp}-{os.getpid()}.log"
    log.touch(mode=0o600)
    for old in sorted(folder.glob(_PATTERN))[:-KEPT]:
        _delete(old)
    return log


def _delete(log: Path) -> None:
    try:
        log.unlink(missing_ok=True)
    except OSError:
        # Another running engine has it open (Windows); the next start tries again.
        return
