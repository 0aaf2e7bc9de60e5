"""What the user decides: the knob, which may turn between two rounds, and the sampling, which
stays as it is for a whole reply."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Knob:
    """The rule, and how far it may let the reply drift from the target."""

    rule: str = "fsd"
    threshold: float = 0.1
    divergence: str = "js"
    form: str = "full"
    """`full` rows, `top-k`, `top-p`, or `random`, the paper's control."""
    form_k: int = 50
    form_p: float = 0.9
    on_processed: bool = False
    """Compare the distributions after temperature, filters and penalties rather than before."""
    lookahead: str = "adaptive"

    def __post_init__(self) -> None:
        if math.isnan(self.threshold) or self.threshold < 0:
            raise ValueError(f"the threshold must be 0 or more, not {self.threshold}")
        if self.form_k < 1:
            raise ValueError(f"the top-k form needs k of at least 1, not {self.form_k}")
        if not 0 < self.form_p <= 1:
            raise ValueError(f"the top-p form needs p above 0 and at most 1, not {self.form_p}")


class LiveKnob:
    """The one mutable thing in a reply; the loop reads it once per round.

    Replacing the reference is atomic, so another thread may turn it at any time.
    """

    def __init__(self, knob: Knob) -> None:
        self.current = knob


@dataclass(frozen=True)
class Sampling:
    """From logits to the distribution a token is drawn from."""

    temperature: float = 0.7
    """0 is greedy: the likeliest token, always."""
    top_k: int = 0
    """0: no limit."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    greedy_draft: bool = False
    """Draft the likeliest token although the target samples; Q is then a point mass."""

    def __post_init__(self) -> None:
        within = {
            "temperature": 0 <= self.temperature < math.inf,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": 0 < self.repetition_penalty < math.inf,
            "presence_penalty": math.isfinite(self.presence_penalty),
            "frequency_penalty": math.isfinite(self.frequency_penalty),
        }
        for name, good in within.items():
            if not good:
                raise ValueError(f"{name} cannot be {getattr(self, name)}")
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise ValueError(f"logit_bias cannot give token {token} {bias}")

    @property
    def penalises(self) -> bool:
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
        )
