"""What the code released with the paper does otherwise, in numbers; `docs/algorithm.md` has them
in a table. Nothing of that code is here: what it computes is written down from its formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from one_round import OneRound, proposal_of
from table_models import TableModel, draft_for, write_reply
from torch import Tensor

from fsd_chat.decoding.distributions import point_masses
from fsd_chat.decoding.divergence import js, js_as_released, kl_draft_target
from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.rules import RULES, Evidence
from fsd_chat.decoding.settings import Knob, Sampling

AT_ONE = Sampling(temperature=1.0)


def row(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities])


def logits(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows).log()


def distance(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().sum().item() / 2


def test_a_published_threshold_is_a_smaller_one_of_the_real_jensen_shannon() -> None:
    """T = 0.4, the released example's, between two rows that mirror each other."""
    share = torch.linspace(0.0005, 0.5, 5_000)
    log_p = torch.stack([share, 1 - share], dim=-1).log()
    log_q = log_p.flip(-1)

    at = (js_as_released(log_p, log_q) - 0.4).abs().argmin()

    assert js(log_p, log_q)[at].item() == pytest.approx(0.309, abs=1e-3)
    assert js(log_p, log_q).max() < math.log(2)
    assert js_as_released(log_p, log_q).max() > 3


def law_of_a_greedy_draft(rule: str, P: Tensor, Q: Tensor, claimed: Tensor) -> Tensor:
    """The law of a position whose draft is Q's likeliest token, and whose coin and residual take
    `claimed` for the distribution it was drawn from."""
    drafted = Q.argmax(dim=-1)
    evidence = Evidence(P, claimed, drafted, js(P.log(), Q.log()))
    T = torch.tensor(0.1)
    stays = RULES[rule].accept(evidence, T)[0]
    replaced = RULES[rule].replace(evidence, T)[0]
    if stays < 1:
        replaced = replaced / replaced.sum()
    return stays * point_masses(drafted, P.shape[-1])[0] + (1 - stays) * replaced


def test_greedy_drafts_under_a_threshold_alone_leave_nothing_of_sampling() -> None:
    """Target and draft agree entirely, and yet of three likely tokens only one is ever said."""
    P = row(0.40, 0.35, 0.25)
    alike = logits((0.40, 0.35, 0.25), (0.40, 0.35, 0.25))
    greedy = proposal_of(alike[:1], [0], AT_ONE, greedy=True)

    law = law_of_a_greedy_draft("fsd-paper", P, P, point_masses(torch.tensor([0]), 3))
    said = {
        OneRound(alike, greedy, Knob(rule="fsd-paper"), AT_ONE).verify(seed)[0].id
        for seed in range(50)
    }

    assert distance(law, P[0]) == pytest.approx(0.60)
    assert said == {0}


@pytest.mark.parametrize(
    ("P", "Q", "bias"),
    [((0.6, 0.4), (0.8, 0.2), 0.15), ((0.6, 0.4), (0.55, 0.45), 0.40)],
)
def test_a_coin_that_takes_the_whole_row_for_the_q_of_a_greedy_draft_is_biased(
    P: tuple[float, ...], Q: tuple[float, ...], bias: float
) -> None:
    """The released baseline of speculative decoding, and transformers #47932."""
    target, draft = row(*P), row(*Q)
    drawn_from = point_masses(draft.argmax(dim=-1), 2)

    wrong = law_of_a_greedy_draft("exact", target, draft, claimed=draft)
    right = law_of_a_greedy_draft("exact", target, draft, claimed=drawn_from)

    assert distance(wrong, target[0]) == pytest.approx(bias)
    assert distance(right, target[0]) == pytest.approx(0, abs=1e-6)


TEXT_ENDS, TURN_ENDS = 8, 9


class SaysThreeWords(TableModel):
    """5, 6, 7 and the end of its turn; and then all over again."""

    def logits_after(self, context: Sequence[int]) -> Tensor:
        following = {5: 6, 6: 7, 7: TURN_ENDS}.get(context[-1], 5)
        return point_masses(torch.tensor([following]), 10)[0] * 50


@pytest.mark.parametrize(
    ("known", "said"), [((TEXT_ENDS,), 100), ((TEXT_ENDS, TURN_ENDS), 4)], ids=["one", "both"]
)
def test_a_reply_whose_end_token_is_not_known_runs_to_the_end_of_its_budget(
    known: tuple[int, ...], said: int
) -> None:
    """Llama 3 has two such tokens; the released code compares with one."""
    target, draft, text = SaysThreeWords(10, seed=0), SaysThreeWords(10, seed=0), [1, 2]

    write_reply(target, ModelDrafter(draft), text, end_ids=known, max_tokens=100)

    assert len(text) - 2 == said


def test_a_target_loaded_from_the_drafts_name_accepts_everything_at_any_threshold() -> None:
    target = TableModel(12, seed=1)
    rates = {}
    for name, noise in (("the draft's", 0.0), ("its own", 1.0)):
        target.rollback(0)
        drafter = ModelDrafter(draft_for(target, noise))
        # Rounding alone may put a divergence a little above 0.
        knob = Knob(rule="fsd-paper", threshold=1e-4)
        rounds = write_reply(target, drafter, [1, 2], knob=knob, max_tokens=60)
        rates[name] = sum(r.accepted for r in rounds) / sum(r.verified for r in rounds)
    assert rates == {"the draft's": 1.0, "its own": 0.0}


def test_six_items_mostly_tell_equal_systems_apart() -> None:
    """Two systems that are right three times in four, on six items each."""
    right = [math.comb(6, k) * 0.75**k * 0.25 ** (6 - k) for k in range(7)]
    assert 1 - sum(chance**2 for chance in right) == pytest.approx(0.735, abs=5e-4)


def test_a_floor_under_probabilities_admits_what_the_user_ruled_out() -> None:
    """The draft may say a token that the target's top-p has removed: an infinite divergence."""
    P, Q = row(0.6, 0.4, 0.0), row(0.5, 0.4, 0.1)
    floor = 1e-10
    floored_p, floored_q = ((rows + floor) / (1 + 3 * floor) for rows in (P, Q))

    assert kl_draft_target(P.log(), Q.log()).item() == math.inf
    assert kl_draft_target(floored_p.log(), floored_q.log()).item() == pytest.approx(1.98, abs=0.01)
