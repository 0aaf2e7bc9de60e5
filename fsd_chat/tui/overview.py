"""What the status bar is told of a talk."""

from __future__ import annotations

import math

from fsd_chat.engine.knob import BOUNDS, KNOB_MAXIMUM
from fsd_chat.engine.messages import Knob
from fsd_chat.tui.talk import Talk
from fsd_chat.tui.widgets.status import Status

WITHOUT_THRESHOLD = ("exact", "target-only")
"""Rules that neither a divergence nor T has a say in."""


def overview(talk: Talk, activity: str, detail: str, turned: bool) -> Status:
    """turned: the knob was, a moment ago."""
    knob, counts = talk.knob, talk.statistics
    return Status(
        pair=talk.pair.name,
        rule=knob.rule,
        divergence="" if knob.rule in WITHOUT_THRESHOLD else knob.divergence,
        threshold=knob.threshold,
        gauge=gauge(knob),
        activity=activity,
        detail=detail,
        drafting=talk.ready is None or talk.ready.draft is not None,
        acceptance=counts.acceptance,
        recent_acceptance=counts.recent_acceptance,
        exact_acceptance=counts.exact_acceptance,
        fuzzy_share=counts.fuzzy / counts.output if counts.output else None,
        tokens_per_second=counts.tokens_per_second,
        tokens_per_round=counts.tokens_per_round,
        drafted=talk.drafted,
        from_token=talk.governed_from if talk.busy else None,
        turned=turned,
    )


def gauge(knob: Knob) -> float:
    """How far the knob is turned, 0 to 1."""
    bound = KNOB_MAXIMUM.get(knob.rule, BOUNDS[knob.divergence])
    if math.isinf(bound):
        return 1.0 if math.isinf(knob.threshold) else knob.threshold / (1 + knob.threshold)
    return min(1.0, knob.threshold / bound)
