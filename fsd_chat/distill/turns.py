"""What a chat template writes around the two sides of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsd_chat.models.errors import ModelError

MARKS = ("mark-one-7f3", "mark-two-7f3", "mark-three-7f3")
"""Stand for what was said; no template takes them for anything else."""


@dataclass(frozen=True)
class Turns:
    """Token ids between the words of the two sides."""

    opening: tuple[int, ...]
    """Up to the first word of the user, a default system message included."""
    to_assistant: tuple[int, ...]
    """From the end of the user's words to the first of the answer."""
    to_user: tuple[int, ...]
    """From the end of an answer to the user's next words."""
    end_ids: frozenset[int]


def turns_of(tokenizer: Any, name: str, end_ids: frozenset[int]) -> Turns:
    """Raises ModelError for a model without a chat template, or with one that cannot be opened."""
    if not tokenizer.chat_template:
        raise ModelError(
            "template",
            f"{name} has no chat template (a base model?), so it cannot write conversations; "
            "choose an instruct model",
        )
    roles = ("user", "assistant", "user")
    said = [{"role": role, "content": mark} for role, mark in zip(roles, MARKS, strict=True)]
    text: str = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    pieces = []
    for mark in MARKS:
        before, found, text = text.partition(mark)
        if not found:
            raise ModelError(
                "template",
                f"the chat template of {name} does not repeat what was said, so nobody can tell "
                "where a turn begins",
            )
        pieces.append(before)
    opening, to_assistant, to_user = (
        tuple(tokenizer(piece, add_special_tokens=False).input_ids) for piece in pieces
    )
    return Turns(opening, to_assistant, to_user, end_ids)
