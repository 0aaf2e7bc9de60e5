"""Training the draft, in steps that can be interrupted at any time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fsd_chat.distill.batches import MADE_UP_WEIGHT, Batch, batches
from fsd_chat.distill.reading import Step, read_along
from fsd_chat.distill.records import Stored, save_whole
from fsd_chat.distill.student import trainable
from fsd_chat.models.hardware import choose_dtype
from fsd_chat.models.small_draft import SmallDraft


@dataclass(frozen=True)
class Course:
    """How a draft is trained."""

    rate: float = 1e-3
    warm_up: int = 40
    """Steps until the learning rate is reached."""
    level: float = 0.4
    """Part of the training after which the rate begins to fall, linearly, to `last`."""
    last: float = 0.03
    batch_tokens: int = 1024
    depth: int = 3
    """Tokens drafted from every position, in the end."""
    deepening: float = 0.75
    """Part of the training in which only one is: the first token is asked for most, and costs a
    third."""
    depth_weights: tuple[float, ...] = (1.0, 0.8, 0.6, 0.5)
    temperature: float = 0.7
    """At which the overlap is trained; the cross-entropy is at 1."""
    longest_gradient: float = 1.0

    def depth_at(self, done: float) -> int:
        return 1 if done < self.deepening else self.depth

    def rate_at(self, step: int, done: float) -> float:
        """done: part of the training that lies behind, 0 to 1."""
        falling = 1 - max(0.0, done - self.level) / (1 - self.level) * (1 - self.last)
        return self.rate * min(1.0, (step + 1) / self.warm_up) * falling


class Training:
    """A draft, its optimizer, and the order in which it reads the conversations."""

    def __init__(
        self,
        draft: SmallDraft,
        conversations: Stored,
        course: Course,
        seed: int,
    ) -> None:
        """conversations: none of them held out."""
        self.draft = draft
        self.steps = 0
        self.tokens = 0
        self.pass_tokens = sum(conversations.lengths)
        """Of one pass over all conversations."""
        self.loss = math.nan
        """Of the last step."""
        self._course = course
        self._conversations = conversations
        self._seed = seed
        self._device = draft.model.device
        self._parameters = trainable(draft)
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=course.rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._batches = self._in_order()

    def _in_order(self) -> Iterator[Batch]:
        while True:
            # Another order in every pass, and after every interruption.
            generator = torch.Generator().manual_seed(self._seed + self.steps)
            yield from batches(self._conversations, self._course.batch_tokens, generator)

    def step(self, done: float) -> None:
        """Learn from one batch. done: part of the training that lies behind, 0 to 1."""
        batch = next(self._batches).to(self._device)
        for group in self._optimizer.param_groups:
            group["lr"] = self._course.rate_at(self.steps, done)
        with _autocast(self._device):
            steps = read_along(
                self.draft,
                batch,
                self._course.depth_at(done),
                self._course.temperature,
                answers_only=False,
            )
            loss = self._loss(steps)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, self._course.longest_gradient)
        self._optimizer.step()
        self.steps += 1
        self.tokens += batch.count
        self.loss = float(loss.detach())

    def _loss(self, steps: Sequence[Step]) -> Tensor:
        weights = self._course.depth_weights[: len(steps)]
        total = torch.zeros((), device=self._device)
        for weight, step in zip(weights, steps, strict=True):
            counts = torch.where(step.written == 2, 1.0, MADE_UP_WEIGHT)
            total = total + weight * (step.agreement.loss() * counts).sum() / counts.sum()
        return total / sum(weights)

    def save(self, place: Path) -> None:
        """Everything that is needed to go on as if nothing had happened."""
        tensors: dict[str, Tensor] = {}
        for i, one in enumerate(self._parameters):
            tensors[f"{i}.value"] = one.detach()
            tensors |= {f"{i}.{key}": held for key, held in self._optimizer.state[one].items()}
        save_whole(tensors, place, {"steps": str(self.steps), "tokens": str(self.tokens)})

    def load(self, place: Path) -> None:
        """Go on from what `save` wrote."""
        with safe_open(place, framework="pt", device=str(self._device)) as stored:
            about, names = stored.metadata(), set(stored.keys())
            for i, one in enumerate(self._parameters):
                with torch.no_grad():
                    one.copy_(stored.get_tensor(f"{i}.value"))
                # A weight that only deeper drafting uses has no moments before that begins.
                if f"{i}.step" in names:
                    self._optimizer.state[one] = {
                        key: stored.get_tensor(f"{i}.{key}")
                        for key in ("step", "exp_avg", "exp_avg_sq")
                    }
        self.steps, self.tokens = int(about["steps"]), int(about["tokens"])
        self._batches = self._in_order()


@dataclass(frozen=True)
class HeldOut:
    """How a draft does on conversations that it was not trained on, per draft position."""

    conversations: int
    positions: int
    """In answers of the target."""
    overlap: tuple[float, ...]
    """Mean Σ min(P, Q) of the first drafted token, the second, …"""
    greedy: tuple[float, ...]
    """How often both find the same token likeliest."""


@torch.no_grad()
def held_out(
    draft: SmallDraft,
    conversations: Stored,
    temperature: float,
    depth: int,
) -> HeldOut:
    """Measure on `conversations`, the target's distributions against the draft's at `temperature`
    (one of those that the log partitions are of, besides 1)."""
    sums: list[Tensor] = []
    for batch in batches(conversations, 2048, None):
        with _autocast(draft.model.device):
            steps = read_along(
                draft, batch.to(draft.model.device), depth, temperature, answers_only=True
            )
        found = [
            torch.stack(
                [
                    one.agreement.overlap.sum(),
                    one.agreement.same_choice.sum(),
                    torch.tensor(len(one.agreement.overlap), device=draft.model.device),
                ]
            )
            for one in steps
        ]
        sums.append(torch.stack(found).double().cpu())
    total = torch.stack(sums).sum(dim=0)
    shares = (total[:, :2] / total[:, 2:]).tolist()
    return HeldOut(
        conversations=len(conversations),
        positions=int(total[0, 2]),
        overlap=tuple(share[0] for share in shares),
        greedy=tuple(share[1] for share in shares),
    )


def _autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 where the hardware computes in it."""
    dtype = choose_dtype(None, device, "")
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype)
