"""A reply to keep: two rounds, a knob that turned, and one divergence that is infinite."""

from __future__ import annotations

import math

from fsd_chat.chats.conversation import ReplyStart
from fsd_chat.engine.messages import Finished, Knob, KnobSet, Round, Sampling, TokenRecord

START = ReplyStart(
    pair="smol",
    target="smol",
    draft="smol-draft",
    knob=Knob(threshold=0.1),
    sampling=Sampling(temperature=0.7),
    target_revision="abc",
)
ROUNDS = (
    Round(
        request=1,
        index=0,
        tokens=(
            TokenRecord(5, "Hel", "accepted", 0.01, 0.9, 0.5, 0.6, None, (0.01, 1, 2, 3, 4)),
            TokenRecord(6, "lo", "recovered", math.inf, 0.1, 0.4, 0.0, 9, (0.6, math.inf, 1, 1, 2)),
        ),
        text="Hello",
        drafted=4,
        draft_s=0.1,
        verify_s=0.2,
        total_s=0.4,
    ),
    Round(
        request=1,
        index=2,
        tokens=(
            TokenRecord(7, " wor", "fuzzy", 0.2, 0.3, 0.1, 0.6, None, (0.2, 1, 2, 3, 4)),
            TokenRecord(8, "ld", "bonus", target_probability=0.9),
        ),
        text=" wor",
        reasoning="hm",
        drafted=1,
        total_s=0.6,
    ),
)
FINISHED = Finished(request=1, reason="end", text="ld")
TIMELINE = (
    KnobSet(request=1, index=0, knob=Knob(threshold=0.1)),
    KnobSet(request=1, index=2, knob=Knob(threshold=0.3)),
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
