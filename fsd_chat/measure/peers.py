"""The same models in transformers' own `generate`, to compare with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.generation.candidate_generator import CandidateGenerator

from fsd_chat.decoding.settings import Sampling
from fsd_chat.measure.speed import LONGEST, Rounds, Taken
from fsd_chat.models.cached import Features
from fsd_chat.models.cached_draft import CachedDraft
from fsd_chat.models.loading import LoadedModel
from fsd_chat.models.pair import Pair


class Clock(StoppingCriteria):
    """Never stops anything; is asked after every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, int]] = []
        """When, and how long the text then was."""

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        self.steps.append((time.perf_counter(), input_ids.shape[1]))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@dataclass(frozen=True)
class Transformers:
    """`generate`, and assisted by the pair's draft where there is to be a draft."""

    pair: Pair
    sampling: Sampling
    drafts: int = 0
    """A round; 0 for the target alone."""

    def __call__(self, prompt: Sequence[int], seed: int) -> Taken:
        target, clock = self.pair.target, Clock()
        model: Any = target.model
        greedy = self.sampling.temperature == 0
        given: dict[str, Any] = {} if greedy else {"temperature": self.sampling.temperature}
        if self.drafts:
            assert self.pair.draft is not None
            given["assistant_model"] = self._assistant(self.pair.draft)
        tokens = torch.tensor([list(prompt)], device=target.device)
        torch.manual_seed(seed)
        start = time.perf_counter()
        with torch.inference_mode():
            written = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=not greedy,
                top_k=None,
                top_p=None,
                max_new_tokens=LONGEST,
                eos_token_id=sorted(target.end_ids),
                pad_token_id=min(target.end_ids),
                stopping_criteria=[clock],
                **given,
            )
        (first, length), (last, end) = clock.steps[0], clock.steps[-1]
        return Taken(
            tokens=written[0, len(prompt) :].tolist(),
            first_s=first - start,
            seconds=last - first,
            counted=end - length,
            rounds=Rounds(count=len(clock.steps) - 1),
        )

    def _assistant(self, draft: LoadedModel) -> Any:
        model: Any = self.pair.target.model
        if draft.small is None:
            model.__dict__.pop("_get_candidate_generator", None)
            settings: Any = draft.model.generation_config
            settings.num_assistant_tokens = self.drafts
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
        else:
            own = FromDraft(self.pair, self.drafts, self.sampling.temperature)
            model._get_candidate_generator = lambda **options: own
        return draft.model


class FromDraft(CandidateGenerator):
    """A draft that reads its target's hidden states, as transformers' assisted generation wants
    one; on transformers' own layers and cache."""

    requires_model_outputs = True

    def __init__(self, pair: Pair, drafts: int, temperature: float) -> None:
        assert pair.draft is not None
        assert pair.draft.small is not None
        self.model_kwargs_overrides = {"output_hidden_states": True}
        self._drafts, self._temperature = drafts, temperature
        self._seen = Seen(pair.draft.small.levels)
        rows = pair.target.model.config.get_text_config().vocab_size
        self._draft = CachedDraft(pair.draft.small, rows, pair.draft.context, self._seen)

    def get_candidates(self, input_ids: Any, **found: Any) -> tuple[Any, Any]:
        """input_ids [1, n] → them and the drafts [1, n + k], and the drafts' logits [1, k, rows]
        at the temperature; none before the target has read the prompt."""
        if found["is_first_iteration"]:
            return input_ids, None
        self._seen.add(found["model_outputs"].hidden_states, input_ids.shape[1] - 1)
        draft, text = self._draft, input_ids[0]
        draft.rollback(min(draft.length, text.shape[0] - 1))
        rows: list[Tensor] = []
        new = text[draft.length :]
        for _ in range(self._drafts):
            row = draft.forward(new, rows=1).float()
            if self._temperature == 0:
                new = row.argmax(dim=-1)
            else:
                row = row / self._temperature
                new = row.softmax(dim=-1).multinomial(1)[0]
            rows.append(row)
            text = torch.cat((text, new))
        return text[None], torch.stack(rows, dim=1)

    def update_candidate_strategy(self, input_ids: Tensor, scores: Any, num_matches: int) -> None:
        """As many again."""


class Seen:
    """What the target had in mind so far, as its outputs told."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.length = 0
        self._kept = Features(levels)

    def add(self, states: Sequence[Tensor], length: int) -> None:
        """states: of every level [1, n, hidden], of the n tokens read last; the first `length`
        tokens of the text stand."""
        if self._kept.levels:
            self._kept.add(self.length, [states[level][0] for level in self._kept.levels])
        self.length = length

    def features(self, start: int, stop: int) -> Tensor:
        """[stop - start, levels, hidden]."""
        return self._kept.between(start, stop)
