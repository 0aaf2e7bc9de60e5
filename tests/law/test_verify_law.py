"""The same laws through `verify` itself, its coins falling as the test has them fall.

For every pair of drafts each coin is put just below and just above the chance that the rule's
definition gives, so the chance is known to a millionth; the distributions that the replacement and
the bonus are drawn from are read off. Summed over all drafts this is the law of a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
import rule_definitions as defined
import torch
from one_round import OneRound, proposal_of
from rule_definitions import Row
from torch import Tensor

from fsd_chat.decoding.distributions import point_masses
from fsd_chat.decoding.settings import Knob, Sampling

VOCABULARY, DRAFTS = 4, 2
TARGET = torch.tensor(
    [[0.45, 0.30, 0.20, 0.05], [0.10, 0.35, 0.15, 0.40], [0.25, 0.25, 0.10, 0.40]]
).log()
DRAFT = torch.tensor([[0.20, 0.25, 0.15, 0.40], [0.15, 0.26, 0.24, 0.35]]).log()
MARGIN = 1e-6

SETTINGS = {
    "plain": Sampling(temperature=1.0),
    "cool, in a nucleus": Sampling(temperature=0.6, top_p=0.85),
    "few tokens": Sampling(temperature=1.3, top_k=3, min_p=0.05),
    "greedy": Sampling(temperature=0.0),
    "greedy in a nucleus": Sampling(temperature=0.0, top_p=0.85),
    "greedy draft": Sampling(temperature=1.0, greedy_draft=True),
}
KNOBS = [
    Knob(rule="exact"),
    *[Knob(rule="fsd", threshold=T) for T in (0.0, 0.06, 0.7)],
    *[Knob(rule="fsd-paper", threshold=T) for T in (0.0, 0.06, 0.7)],
    Knob(rule="lenient", threshold=0.4),
    Knob(rule="typical", threshold=0.6),
    Knob(rule="cactus", threshold=0.05),
    Knob(rule="cascade-token", threshold=0.5),
    Knob(rule="cascade-token", threshold=1.0),
]


def name(knob: Knob) -> str:
    return f"{knob.rule} {knob.threshold}"


def row(logits: Tensor) -> Row:
    values: Row = logits.double().softmax(dim=-1).tolist()
    return values


@dataclass(frozen=True)
class Expected:
    """Everything about one position, worked out in plain Python."""

    P: Row
    Q: Row
    D: float
    allowed: list[bool]

    def chance(self, rule: str, T: float, x: int) -> float:
        return defined.chance(rule, self.P, self.Q, self.D, T, x) if self.allowed[x] else 0.0

    def replacement(self, rule: str, T: float, x: int) -> Row:
        return defined.replacement(rule, self.P, self.Q, T, x)


def filtered(logits: Tensor, sampling: Sampling) -> tuple[Row, list[bool]]:
    """The distribution under `sampling` [V], and which tokens its filters admit."""
    scaled = logits.double() / (sampling.temperature or 1.0)
    order = scaled.argsort(descending=True).tolist()
    kept = order[: sampling.top_k] if sampling.top_k else list(order)
    probabilities = dict(zip(kept, row(scaled[kept]), strict=True))
    nucleus: list[int] = []
    for token in kept:
        if sum(probabilities[each] for each in nucleus) < sampling.top_p:
            nucleus.append(token)
    probabilities = dict(zip(nucleus, row(scaled[nucleus]), strict=True))
    bar = sampling.min_p * max(probabilities.values())
    kept = [token for token in nucleus if probabilities[token] >= bar]
    if sampling.temperature == 0:
        whole = [float(token == order[0]) for token in range(len(order))]
    else:
        chances = dict(zip(kept, row(scaled[kept]), strict=True))
        whole = [chances.get(token, 0.0) for token in range(len(order))]
    return whole, [token in kept for token in range(len(order))]


def expected_at(position: int, sampling: Sampling) -> Expected:
    P, allowed = filtered(TARGET[position], sampling)
    Q = filtered(DRAFT[position], sampling)[0]
    if sampling.greedy_draft:
        Q = point_masses(DRAFT[position].argmax()[None], VOCABULARY)[0].tolist()
    D = defined.js(row(TARGET[position]), row(DRAFT[position]))
    return Expected(P, Q, D, allowed)


def drafts_of(knob: Knob, sampling: Sampling, exact_positions: int) -> list[tuple[OneRound, Row]]:
    """One round for every pair of drafts that Q allows, and the two drafts' probabilities."""
    positions = [expected_at(i, sampling) for i in range(DRAFTS)]
    found = []
    for pair in product(range(VOCABULARY), repeat=DRAFTS):
        likely = [position.Q[x] for position, x in zip(positions, pair, strict=True)]
        if min(likely) > 0:
            proposal = proposal_of(DRAFT, pair, sampling, sampling.greedy_draft)
            found.append((OneRound(TARGET, proposal, knob, sampling, exact_positions), likely))
    return found


def kept(round: OneRound, coins: list[float]) -> int:
    tokens, _ = round.with_coins(coins)
    return len(tokens) - 1


def check_the_chance(round: OneRound, position: int, chance: float) -> None:
    """Drafts before `position` are kept by coins at 0."""
    before, after = [0.0] * position, [0.0] * (DRAFTS - 1 - position)
    if chance > 0:
        below = min(chance, 1.0) - MARGIN
        assert kept(round, [*before, below, *after]) > position
    if chance < 1:
        assert kept(round, [*before, chance + MARGIN if chance else 0.0, *after]) == position


SITUATIONS = [
    *[(setting, 0) for setting in SETTINGS],
    *[(setting, count) for setting in ("plain", "greedy in a nucleus") for count in (1, 2)],
]


@pytest.mark.parametrize(("setting", "exact_positions"), SITUATIONS)
@pytest.mark.parametrize("knob", KNOBS, ids=name)
def test_a_whole_round_has_the_law_of_its_rule(
    knob: Knob, setting: str, exact_positions: int
) -> None:
    sampling = SETTINGS[setting]
    positions = [expected_at(i, sampling) for i in range(DRAFTS)]
    rules = ["exact" if i < exact_positions else knob.rule for i in range(DRAFTS)]
    first = torch.zeros(VOCABULARY, dtype=torch.float64)
    total = 0.0

    for round, likely in drafts_of(knob, sampling, exact_positions):
        assert round.proposal is not None
        pair = round.proposal.tokens.tolist()
        drafted = likely[0] * likely[1]
        reached = 1.0
        for i, (position, x) in enumerate(zip(positions, pair, strict=True)):
            chance = position.chance(rules[i], knob.threshold, x)
            check_the_chance(round, i, chance)
            if chance < 1:
                coins = [0.0] * i + [1.0] * (DRAFTS - i)
                tokens, weights = round.with_coins(coins)
                replacement = position.replacement(rules[i], knob.threshold, x)
                assert weights.tolist() == pytest.approx(replacement, abs=1e-6)
                assert (tokens[-1].origin, tokens[-1].rejected) == ("recovered", x)
                if i == 0:
                    first += drafted * (1 - chance) * weights
                total += drafted * reached * (1 - chance)
            if i == 0:
                first[x] += drafted * chance
            reached *= chance
            if chance == 0:
                break
        else:
            tokens, weights = round.with_coins([0.0, 0.0])
            bonus = filtered(TARGET[DRAFTS], sampling)[0]
            assert weights.tolist() == pytest.approx(bonus, abs=1e-6)
            assert tokens[-1].origin == "bonus"
            total += drafted * reached

    assert total == pytest.approx(1, abs=1e-6)
    if all(positions[0].allowed) or rules[0] == "exact":
        position = positions[0]
        law = defined.law(rules[0], position.P, position.Q, position.D, knob.threshold)
        assert first.tolist() == pytest.approx(law, abs=1e-6)
    for token in range(VOCABULARY):
        if not positions[0].allowed[token]:
            assert first[token] == 0


def test_the_settings_here_do_rule_tokens_out_and_do_leave_something_to_decide() -> None:
    for setting, sampling in SETTINGS.items():
        allowed = [expected_at(i, sampling).allowed for i in range(DRAFTS)]
        assert all(sum(each) >= 2 for each in allowed)
        assert all(all(each) for each in allowed) == (
            setting in ("plain", "greedy", "greedy draft")
        )
    divergences = [expected_at(i, SETTINGS["plain"]).D for i in range(DRAFTS)]
    assert min(divergences) < 0.06 < max(divergences) < 0.7
