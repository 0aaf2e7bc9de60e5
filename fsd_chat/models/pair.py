"""A target, and what drafts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fsd_chat.engine.messages import LoadPair, ModelSource
from fsd_chat.models.cached import DynamicCachedModel, Reader, TargetReader, habits_of
from fsd_chat.models.cached_draft import CachedDraft, StaticCachedDraft
from fsd_chat.models.errors import ModelError
from fsd_chat.models.loading import LoadedModel, load_model
from fsd_chat.models.progress import Progress, part
from fsd_chat.models.small_draft import SmallDraft
from fsd_chat.models.static import StaticCachedModel
from fsd_chat.models.vocabulary import compare

PROMPT_LOOKUP = "prompt-lookup"


@dataclass(frozen=True)
class Pair:
    name: str
    target: LoadedModel
    draft: LoadedModel | None
    prompt_lookup: bool
    """Drafts are copied from the conversation; before the draft model is asked, if there is one."""
    vocabulary: int
    """Ids that are the same token to both; rows of both are cut to it."""
    context: int
    notices: tuple[str, ...] = ()

    def cached(self) -> tuple[TargetReader, Reader | None]:
        """The target and the draft model, nothing read yet; a draft that was made for its target
        sees what that has in mind."""
        target, draft = self.target, self.draft
        small = None if draft is None or draft is target else draft.small
        reader = self._reader(target, () if small is None else small.levels)
        if draft is None:
            return reader, None
        if small is None:
            return reader, self._reader(draft, ())
        if draft.layers is None:
            return reader, CachedDraft(small, self.vocabulary, draft.context, reader)
        return reader, StaticCachedDraft(
            small, draft.layers, self.vocabulary, draft.context, reader
        )

    def _reader(self, one: LoadedModel, levels: Sequence[int]) -> TargetReader:
        if one.layers is None:
            return DynamicCachedModel(one.model, self.vocabulary, one.context, levels)
        return StaticCachedModel(one.model, one.layers, self.vocabulary, one.context, levels)


def load_pair(command: LoadPair, progress: Progress) -> Pair:
    """Load the target and what drafts for it; a draft that cannot draft is left out with a notice.

    Raises ModelError if a model cannot be had, or if the vocabularies differ.
    """
    lookup, source = _drafting(command.draft)
    share = 1.0 if source is None else 0.5
    target = load_model(command.target, part(progress, 0.0, share))
    if not _can_roll_back(target):
        why = (
            f"{target.name} keeps a recurrent state that cannot be rolled back, so nothing is "
            "drafted for it: it writes alone"
        )
        return _alone(command, target, why if command.draft else None)
    if source is None:
        return _alone(command, target, None, lookup)
    draft = target
    if source != command.target:
        draft = load_model(source, part(progress, share, 1.0))
    if not _can_roll_back(draft):
        why = (
            f"the draft {draft.name} keeps a recurrent state that cannot be rolled back, so it is "
            "not used: " + ("drafts are only copied" if lookup else "the target writes alone")
        )
        return _alone(command, target, why, lookup)
    return _together(command, target, draft, lookup)


def _can_roll_back(one: LoadedModel) -> bool:
    """Our own layers can; others have to be tried out."""
    return one.layers is not None or habits_of(one.model).can_roll_back


def _drafting(draft: ModelSource | None) -> tuple[bool, ModelSource | None]:
    """Whether to copy from the conversation, and the draft model if there is one:
    `prompt-lookup`, `prompt-lookup+MODEL` or `MODEL`."""
    if draft is None:
        return False, None
    first, plus, rest = draft.location.partition("+")
    if first != PROMPT_LOOKUP:
        return False, draft
    return True, replace(draft, location=rest) if plus else None


def _alone(command: LoadPair, target: LoadedModel, why: str | None, lookup: bool = False) -> Pair:
    notices = target.notices if why is None else (*target.notices, why)
    return Pair(command.name, target, None, lookup, target.vocabulary, target.context, notices)


def _together(command: LoadPair, target: LoadedModel, draft: LoadedModel, lookup: bool) -> Pair:
    if draft.small is not None and draft is not target:
        _refuse_another_target(target, draft, draft.small)
    agreement = compare(target.tokenizer, draft.tokenizer)
    notices = [*target.notices, *agreement.notices]
    if draft is not target:
        notices += draft.notices
    if draft.context < target.context:
        notices.append(
            f"the draft holds {draft.context} tokens and the target {target.context}; beyond "
            "that the target writes alone"
        )
    return Pair(
        name=command.name,
        target=target,
        draft=draft,
        prompt_lookup=lookup,
        vocabulary=min(target.vocabulary, draft.vocabulary, agreement.common),
        context=target.context,
        notices=tuple(notices),
    )


def _refuse_another_target(target: LoadedModel, draft: LoadedModel, small: SmallDraft) -> None:
    text = target.model.config.get_text_config()
    if small.levels and (
        text.hidden_size != small.hidden or text.num_hidden_layers != small.levels[-1]
    ):
        raise ModelError(
            "vocabulary",
            f"{draft.name} reads the hidden states of the target that it was made for, "
            f"{small.levels[-1]} layers of {small.hidden}; {target.name} has "
            f"{text.num_hidden_layers} of {text.hidden_size}. Choose another draft, or make one "
            "with `fsd-chat distill`",
        )
