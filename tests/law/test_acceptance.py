"""How the share of accepted drafts depends on the threshold, from the package's own functions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fsd_chat.decoding.distributions import raw_log_probabilities
from fsd_chat.decoding.divergence import LARGEST, WHOLE_ROW, measure
from fsd_chat.decoding.rules import RULES, Evidence
from fsd_chat.decoding.settings import Knob

VOCABULARY = 6
LOG_P = raw_log_probabilities(
    torch.randn(80, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 2
)
NOISE = torch.linspace(0, 3, 80)[:, None]
LOG_Q = raw_log_probabilities(
    LOG_P + NOISE * torch.randn(80, VOCABULARY, generator=torch.Generator().manual_seed(2))
)
THRESHOLDS = [0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.4, 0.69, 1.0, 3.0, 20.0]
FORMS = ["full", "top-k", "top-p", "random"]


def divergences(name: str, form: str = "full") -> Tensor:
    knob = Knob(divergence=name, form=form, form_k=3, form_p=0.8)
    return measure(LOG_P, LOG_Q, knob, torch.Generator().manual_seed(3))


def acceptance(rule: str, divergence: Tensor, threshold: float) -> Tensor:
    """Chance that a draft sampled from Q stays, at each of the positions."""
    P, Q = LOG_P.exp(), LOG_Q.exp()
    chances = [
        RULES[rule].accept(
            Evidence(P, Q, torch.full((len(P),), x), divergence), torch.tensor(threshold)
        )
        for x in range(VOCABULARY)
    ]
    return (Q * torch.stack(chances, dim=-1)).sum(dim=-1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WHOLE_ROW)
def test_fsd_never_accepts_less_than_fsd_paper_at_the_same_threshold(name: str, form: str) -> None:
    for threshold in THRESHOLDS:
        fsd = acceptance("fsd", divergences(name, form), threshold)
        paper = acceptance("fsd-paper", divergences(name, form), threshold)
        if threshold > 0:
            assert bool((fsd >= paper - 1e-6).all())
        assert fsd.mean() > paper.mean() or fsd.mean() == pytest.approx(1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WHOLE_ROW)
@pytest.mark.parametrize("rule", ["fsd", "fsd-paper"])
def test_acceptance_never_falls_as_the_threshold_rises(rule: str, name: str, form: str) -> None:
    curve = torch.stack([acceptance(rule, divergences(name, form), T) for T in THRESHOLDS])

    assert bool((curve.diff(dim=0) >= -1e-6).all())
    assert curve[-1].mean() > curve[0].mean()


def test_cascades_accept_everything_at_the_end_of_their_knob_but_not_steadily_more() -> None:
    """A larger trusted set leaves less of P to the tokens outside it, so a step can cost."""
    knobs = torch.linspace(0, 1, 12).tolist()
    curve = torch.stack([acceptance("cascade-token", divergences("js"), T) for T in knobs])

    assert curve[-1].tolist() == pytest.approx([1.0] * 80, abs=1e-6)
    assert curve[-1].mean() > curve[0].mean()
    assert bool((curve.diff(dim=0) < -1e-3).any())


@pytest.mark.parametrize("rule", ["lenient", "typical", "cactus"])
def test_the_other_rules_accept_more_as_their_knob_turns(rule: str) -> None:
    knobs = torch.linspace(0, 0.99, 12).tolist()
    curve = torch.stack([acceptance(rule, divergences("js"), T) for T in knobs])

    assert bool((curve.diff(dim=0) >= -1e-6).all())
    assert curve[-1].mean() > curve[0].mean()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WHOLE_ROW)
@pytest.mark.parametrize("rule", ["fsd", "fsd-paper"])
def test_at_the_bound_of_the_divergence_everything_is_accepted(
    rule: str, name: str, form: str
) -> None:
    bound = 1.0 if form == "random" else LARGEST[name]

    reached = acceptance(rule, divergences(name, form), bound)

    assert reached.tolist() == pytest.approx([1.0] * 80, abs=1e-6)


def test_at_threshold_zero_fsd_accepts_what_exact_decoding_accepts() -> None:
    overlap = torch.minimum(LOG_P.exp(), LOG_Q.exp()).sum(dim=-1)

    for rule, threshold in (("exact", 0.4), ("fsd", 0.0)):
        accepted = acceptance(rule, divergences("js"), threshold)
        assert accepted.tolist() == pytest.approx(overlap.tolist(), abs=1e-6)


def test_the_random_control_accepts_its_threshold_of_positions() -> None:
    accepted = acceptance("fsd-paper", divergences("js", "random"), 0.4)

    assert accepted.mean().item() == pytest.approx(0.4, abs=3 * math.sqrt(0.24 / 80))
