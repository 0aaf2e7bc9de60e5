"""Whether two models speak the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsd_chat.models.errors import ModelError


@dataclass(frozen=True)
class Agreement:
    common: int
    """Ids below this mean the same token to both."""
    notices: tuple[str, ...] = ()


def tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {id: token for token, id in tokenizer.get_vocab().items()}


def compare(target: Any, draft: Any) -> Agreement:
    """How far the ids of two tokenizers agree.

    Differences among special and added tokens are tolerated and reported: the drafted ones are
    rejected by the target like any other unlikely token. Any other difference makes the draft
    nonsense to the target: raises ModelError naming both sizes and the first id that differs.
    """
    ours, theirs = tokens_by_id(target), tokens_by_id(draft)
    special = set(target.get_added_vocab().values()) | set(draft.get_added_vocab().values())
    common = min(max(ours, default=-1), max(theirs, default=-1)) + 1
    differing = []
    for id in range(common):
        if ours.get(id) != theirs.get(id):
            if id not in special:
                raise ModelError("vocabulary", _refusal(ours, theirs, id))
            differing.append(id)
    return Agreement(common, tuple(_notices(ours, theirs, differing, common)))


def _refusal(ours: dict[int, str], theirs: dict[int, str], id: int) -> str:
    return (
        f"the draft has another vocabulary than the target ({len(theirs)} tokens against "
        f"{len(ours)}); token {id} is {theirs.get(id)!r} in the draft and {ours.get(id)!r} in the "
        "target. Choose a draft of the target's own family"
    )


def _notices(
    ours: dict[int, str], theirs: dict[int, str], differing: list[int], common: int
) -> list[str]:
    notices = []
    if differing:
        named = ", ".join(f"{id} ({ours.get(id)!r} / {theirs.get(id)!r})" for id in differing[:3])
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        notices.append(f"special tokens differ between target and draft: {named}{more}")
    longer = max(len(ours), len(theirs))
    if len(ours) != len(theirs):
        notices.append(
            f"the vocabularies differ in size ({len(ours)} and {len(theirs)}); the {common} ids "
            f"that both have are used, {longer - common} are left out"
        )
    return notices
