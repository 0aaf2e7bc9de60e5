"""What can be wrong with a model, in one line for people."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "not-found", "vocabulary", "template", "context", "memory", "unsupported", "bad-request"
]


class ModelError(Exception):
    """A model cannot be used; the message says which, why, and what to do."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind
