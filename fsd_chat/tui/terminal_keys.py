"""Keys that many terminals send as Escape and a character, and that Textual 8 takes for others."""

from __future__ import annotations

from enum import Enum
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS


class AltKey(Enum):
    ENTER = "alt+enter"
    ZERO = "alt+0"


def tell_alt_keys_apart() -> None:
    """Without this Alt+Enter is Enter, which sends a message, and Alt+0 types a º."""
    table = cast(dict[str, Any], ANSI_SEQUENCES_KEYS)
    table["\x1b\r"] = (AltKey.ENTER,)
    table["\x1b0"] = (AltKey.ZERO,)
