"""The reference values, computed independently in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fsd_chat.decoding import divergence
from fsd_chat.decoding.rules import RULES, Evidence

GOLDEN = Path(__file__).parents[1] / "golden"


def cases(name: str, having: str = "name") -> list[Any]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / name).read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in found if having in case]


NAMES = {
    "js": "js",
    "kl-draft-target": "kl_draft_target",
    "kl-target-draft": "kl_target_draft",
    "tv": "tv",
    "js-as-released": "js_as_released",
}


def rows(case: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    def row(key: str) -> Tensor:
        logits = torch.tensor([[float(value) for value in case[key]]], dtype=torch.float64)
        return torch.log_softmax(logits.to(dtype), dim=-1)

    return row("target_logits"), row("draft_logits")


def close(expected: float | str, dtype: torch.dtype) -> Any:
    if math.isinf(float(expected)):
        return math.inf
    if dtype == torch.float64:
        return pytest.approx(float(expected), rel=1e-9, abs=1e-9)
    return pytest.approx(float(expected), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", cases("divergences.json"))
def test_every_divergence_has_its_reference_value(case: dict[str, Any], dtype: torch.dtype) -> None:
    log_p, log_q = rows(case, dtype)

    for name, key in NAMES.items():
        assert divergence.WHOLE_ROW[name](log_p, log_q).item() == close(case[key], dtype), name
    spectrum = divergence.spectrum(log_p, log_q)[0].tolist()
    assert spectrum == [close(case[NAMES[name]], dtype) for name in divergence.WHOLE_ROW]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", cases("divergences.json", having="top_k"))
def test_every_top_k_form_has_its_reference_value(case: dict[str, Any], dtype: torch.dtype) -> None:
    folded = divergence.fold_top_k(*rows(case, dtype), case["top_k"]["k"])

    for name, key in NAMES.items():
        if key in case["top_k"]:
            measured = divergence.WHOLE_ROW[name](*folded).item()
            assert measured == close(case["top_k"][key], dtype), name


@pytest.mark.parametrize("case", cases("divergences.json"))
def test_the_overlap_is_one_less_the_total_variation(case: dict[str, Any]) -> None:
    log_p, log_q = rows(case, torch.float64)

    overlap = torch.minimum(log_p.exp(), log_q.exp()).sum().item()

    assert overlap == close(case["overlap"], torch.float64)
    assert 1 - divergence.tv(log_p, log_q).item() == close(case["overlap"], torch.float64)


@pytest.mark.parametrize("case", cases("verification.json"))
def test_verification_of_one_draft_has_its_reference_values(case: dict[str, Any]) -> None:
    P = torch.tensor(case["target"], dtype=torch.float64)
    Q = torch.tensor(case["draft"], dtype=torch.float64)
    vocabulary = len(P)
    every_token = Evidence(
        P.expand(vocabulary, -1),
        Q.expand(vocabulary, -1),
        torch.arange(vocabulary),
        divergence.js(P.log()[None], Q.log()[None]).expand(vocabulary),
    )
    T = torch.tensor(0.0)
    exact = RULES["exact"]

    accept = exact.accept(every_token, T)
    weights = exact.replace(every_token, T)
    residual = weights / weights.sum(dim=-1, keepdim=True)
    outcome = Q * accept + (Q * (1 - accept)) @ residual

    reference = case["exact"]
    assert accept.tolist() == pytest.approx(reference["accept_probability_per_token"], abs=1e-9)
    assert (Q @ accept).item() == pytest.approx(reference["acceptance"], abs=1e-9)
    assert residual[0].tolist() == pytest.approx(reference["residual"], abs=1e-9)
    assert outcome.tolist() == pytest.approx(reference["outcome"], abs=1e-9)
    assert every_token.divergence[0].item() == pytest.approx(case["js"], abs=1e-9)


@pytest.mark.parametrize("rule", ["fsd", "fsd-paper"])
@pytest.mark.parametrize("case", cases("verification.json"))
def test_with_the_threshold_at_the_divergence_the_outcome_is_the_drafts(
    case: dict[str, Any], rule: str
) -> None:
    P, Q = torch.tensor(case["target"]), torch.tensor(case["draft"])
    D = divergence.js(P.log()[None], Q.log()[None])
    every_token = Evidence(
        P.expand(len(P), -1), Q.expand(len(Q), -1), torch.arange(len(P)), D.expand(len(P))
    )

    accept = RULES[rule].accept(every_token, D[0])

    reference = case["fuzzy_accept_always"]["outcome"]
    assert (Q * accept).tolist() == pytest.approx(reference, abs=1e-7)
