"""What the models of a pair have read, and how much of it the next reply can keep."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_chat.decoding.drafting import Drafter, FirstThatHas, ModelDrafter, PromptLookup
from fsd_chat.decoding.lookahead import Lookahead
from fsd_chat.decoding.model import CachedModel
from fsd_chat.models.pair import Pair


class Caches:
    """`committed` is the text in view, in tokens; both models' caches are always a prefix of it."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.learned: dict[str, Lookahead] = {}
        self.forget()

    def forget(self) -> None:
        """Begin anew with empty caches; what they held is freed."""
        self.committed: list[int] = []
        self.target: CachedModel
        self.draft: CachedModel | None
        self.target, self.draft = self._pair.cached()
        self.drafter = self._drafter()

    def _drafter(self) -> Drafter | None:
        drafters: list[Drafter] = []
        if self._pair.prompt_lookup:
            drafters.append(PromptLookup(self.target.vocabulary, self.target.device))
        if self.draft is not None:
            drafters.append(ModelDrafter(self.draft))
        return drafters[0] if len(drafters) == 1 else FirstThatHas(drafters) if drafters else None

    @property
    def models(self) -> list[CachedModel]:
        return [self.target] if self.draft is None else [self.target, self.draft]

    def turn_to(self, prompt: Sequence[int]) -> None:
        """Make `prompt` the text in view and keep of the caches what it has in common with them.

        At least its last token is left to read: without one there would be no row to go on from.
        """
        keep = min(common_prefix(self.committed, prompt), len(prompt) - 1)
        self.committed = list(prompt)
        for model in self.models:
            model.rollback(min(model.length, keep))

    def roll_back(self) -> None:
        """Leave the last token unread and nothing in a cache that was not committed."""
        for model in self.models:
            model.rollback(min(model.length, max(0, len(self.committed) - 1)))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))
