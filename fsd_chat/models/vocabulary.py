"""Whether two models speak the same tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fsd_chat.models.errors import ModelError
from fsd_chat.models.template import ids_in_use

PADDING = re.compile(r"\[PAD\d+\]")
"""What converters to GGUF call rows that stand for no token."""
NAMED = 3
"""Differences that a notice spells out."""

Tokens = Sequence[str | None]
"""By id; None where an id stands for nothing."""


@dataclass(frozen=True)
class Agreement:
    common: int
    """Ids below this may be drafted: they are the same token to both, but for what the notices
    say of special tokens."""
    notices: tuple[str, ...] = ()


def compare(target: Any, draft: Any) -> Agreement:
    """How far the ids of two tokenizers agree.

    Families pad their vocabularies to different sizes and add different special tokens. What the
    target's template never writes may differ and is reported: the target rejects it like any other
    unlikely token. Any other difference makes the draft nonsense to the target: raises ModelError
    naming both sizes and the first id that differs.
    """
    ours, theirs = tokens_of(target), tokens_of(draft)
    common, used = min(len(ours), len(theirs)), ids_in_use(target)
    added = {*target.get_added_vocab().values(), *draft.get_added_vocab().values()}
    differing = [i for i in range(common) if ours[i] != theirs[i]] if ours != theirs else []
    for id in differing:
        absent = ours[id] is None or theirs[id] is None
        if id in used or not (id in added or absent):
            raise ModelError("vocabulary", _refusal(ours, theirs, id))
    missing = [id for id in sorted(used) if common <= id < len(ours)]
    if missing:
        raise ModelError("vocabulary", _refusal(ours, theirs, missing[0]))
    return Agreement(common, tuple(_notices(ours, theirs, differing)))


def tokens_of(tokenizer: Any) -> Tokens:
    """Every token by its id, up to the last one that is a token."""
    backend = tokenizer.backend_tokenizer
    added = tokenizer.get_added_vocab().values()
    size = max(backend.get_vocab_size(), 1 + max(added, default=-1))
    tokens = list(map(backend.id_to_token, range(size)))
    if None in tokens:
        # There are gaps, so the last ids lie beyond the count. (Asking for all ids takes longer.)
        size = 1 + max(backend.get_vocab().values())
        tokens += map(backend.id_to_token, range(len(tokens), size))
    return tokens[: usable(tokenizer, len(tokens))]


def usable(tokenizer: Any, rows: int) -> int:
    """How many of a model's `rows` are tokens: the rest, at the end, pads the matrix."""
    token = tokenizer.backend_tokenizer.id_to_token
    return next((id + 1 for id in reversed(range(rows)) if _is_token(token(id))), 0)


def _is_token(name: str | None) -> bool:
    return name is not None and not PADDING.fullmatch(name)


def _refusal(ours: Tokens, theirs: Tokens, id: int) -> str:
    return (
        f"the draft has another vocabulary than the target ({len(theirs)} tokens against "
        f"{len(ours)}): token {id} is {_name(theirs, id)} in the draft and {_name(ours, id)} in "
        "the target; choose a draft of the target's own family"
    )


def _notices(ours: Tokens, theirs: Tokens, differing: Sequence[int]) -> list[str]:
    notices = []
    if differing:
        named = ", ".join(
            f"{id} is {_name(ours, id)} in the target and {_name(theirs, id)} in the draft"
            for id in islice(differing, NAMED)
        )
        more = f", and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
        notices.append(f"target and draft differ in special tokens: {named}{more}")
    if len(ours) != len(theirs):
        notices.append(
            f"the target has {len(ours)} tokens and the draft {len(theirs)}; only those that both "
            "have are used"
        )
    return notices


def _name(tokens: Tokens, id: int) -> str:
    token = tokens[id] if id < len(tokens) else None
    return "none" if token is None else repr(token)
