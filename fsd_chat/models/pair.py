"""A target, and what drafts for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models.cached import DynamicCachedModel
from fsd_chat.models.loading import LoadedModel, load_model
from fsd_chat.models.vocabulary import compare

Progress = Callable[[str, float | None], None]
PROMPT_LOOKUP = "prompt-lookup"


@dataclass(frozen=True)
class Pair:
    name: str
    target: LoadedModel
    draft: LoadedModel | None
    prompt_lookup: bool
    vocabulary: int
    """Ids that are the same token to both; rows of both are cut to it."""
    context: int
    notices: tuple[str, ...] = ()


def load_pair(command: LoadPair, progress: Progress) -> Pair:
    """Load both models; a draft that cannot draft is left out with a notice.

    Raises ModelError if a model cannot be had, or if the vocabularies differ.
    """
    source, lookup = _draft_source(command)
    share = 1.0 if source is None else 0.5
    target = load_model(command.target, _part(progress, 0.0, share))
    draft: LoadedModel | None = None
    vocabulary, notices = target.vocabulary, list[str]()
    if not DynamicCachedModel(target.model, vocabulary, target.context).can_roll_back:
        notices.append(
            f"{target.name} keeps a recurrent state that cannot be rolled back, so nothing is "
            "drafted for it: it writes alone"
        )
        return _pair(command, target, None, False, vocabulary, notices)
    if source is not None:
        draft = load_model(source, _part(progress, share, 1.0))
        agreement = compare(target.tokenizer, draft.tokenizer)
        notices.extend(agreement.notices)
        common = min(vocabulary, draft.vocabulary, agreement.common)
        if not DynamicCachedModel(draft.model, common, draft.context).can_roll_back:
            notices.append(
                f"the draft {draft.name} keeps a recurrent state that cannot be rolled back, so "
                "it is not used: the target writes alone"
            )
            return _pair(command, target, None, lookup, vocabulary, notices)
        vocabulary = common
        if draft.context < target.context:
            notices.append(
                f"the draft holds {draft.context} tokens and the target {target.context}; beyond "
                "that the target writes alone"
            )
    return _pair(command, target, draft, lookup, vocabulary, notices)


def _draft_source(command: LoadPair) -> tuple[ModelSource | None, bool]:
    """The model that drafts, if one does, and whether copying from the conversation comes first.

    `prompt-lookup` alone needs no model; `prompt-lookup+MODEL` asks the model where nothing can be
    copied.
    """
    draft = command.draft
    if draft is None:
        return None, False
    first, _, rest = draft.location.partition("+")
    if first != PROMPT_LOOKUP:
        return draft, False
    return (msgspec.structs.replace(draft, location=rest) if rest else None), True


def _pair(
    command: LoadPair,
    target: LoadedModel,
    draft: LoadedModel | None,
    prompt_lookup: bool,
    vocabulary: int,
    notices: list[str],
) -> Pair:
    return Pair(
        command.name, target, draft, prompt_lookup, vocabulary, target.context, tuple(notices)
    )


def _part(progress: Progress, start: float, end: float) -> Progress:
    """Progress of one model as a part of the whole load."""

    def tell(stage: str, fraction: float | None) -> None:
        progress(stage, None if fraction is None else start + fraction * (end - start))

    return tell
