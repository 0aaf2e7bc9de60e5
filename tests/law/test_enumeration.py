"""The law of every rule, by summing over all drafts, all coins and all replacements.

The rules are the package's own functions; what they must come to is in `rule_definitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import rule_definitions as defined
import torch
from rule_definitions import Row
from table_models import TableModel

from fsd_chat.decoding.rules import RULES, Evidence

THRESHOLDS = {
    "exact": (0.0, 0.3),
    "fsd": (0.0, 0.02, 0.1, 0.3, 0.7),
    "fsd-paper": (0.0, 0.02, 0.1, 0.3, 0.7),
    "lenient": (0.0, 0.2, 0.7),
    "typical": (0.0, 0.3, 0.7, 1.0),
    "cactus": (0.0, 0.01, 0.3, 5.0),
    "cascade-token": (0.0, 0.3, 0.7, 1.0),
}
CASES = [(rule, T) for rule, thresholds in THRESHOLDS.items() for T in thresholds]


def pairs_of_rows() -> Iterator[tuple[Row, Row]]:
    """Random P and Q over 4 to 6 tokens, close and far, some with zeros, some point masses."""
    generator = torch.Generator().manual_seed(7)
    for vocabulary in (4, 5, 6):
        for noise in (0.0, 0.3, 1.0, 3.0):
            p = torch.randn(vocabulary, generator=generator, dtype=torch.float64) * 2
            q = p + noise * torch.randn(vocabulary, generator=generator, dtype=torch.float64)
            yield p.softmax(-1).tolist(), q.softmax(-1).tolist()
            p[0] = q[1] = -torch.inf
            yield p.softmax(-1).tolist(), q.softmax(-1).tolist()
    certain, other = [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]
    spread = [0.1, 0.2, 0.3, 0.4]
    yield from ((certain, certain), (certain, other), (spread, other), (certain, spread))


ROWS = list(pairs_of_rows())


def evidence_of_every_token(P: Row, Q: Row) -> Evidence:
    count = len(P)
    return Evidence(
        torch.tensor(P, dtype=torch.float64).expand(count, -1),
        torch.tensor(Q, dtype=torch.float64).expand(count, -1),
        torch.arange(count),
        torch.full((count,), defined.js(P, Q), dtype=torch.float64),
    )


def chances_and_replacements(rule: str, P: Row, Q: Row, T: float) -> tuple[Row, list[Row]]:
    """What the package's functions give for each drafted token; the latter normalised."""
    evidence, knob = evidence_of_every_token(P, Q), torch.tensor(T, dtype=torch.float64)
    weights = RULES[rule].replace(evidence, knob)
    totals = weights.sum(dim=-1, keepdim=True)
    replacements = torch.where(totals > 1e-7, weights / totals, evidence.target)
    return RULES[rule].accept(evidence, knob).double().tolist(), replacements.tolist()


def law_of_one_position(rule: str, P: Row, Q: Row, T: float) -> Row:
    """Σ over drafts x of Q(x), times: x stays, or any y replaces it."""
    outcome = [0.0] * len(P)
    chances, replacements = chances_and_replacements(rule, P, Q, T)
    for x, drafted in enumerate(Q):
        outcome[x] += drafted * chances[x]
        for y, replaced in enumerate(replacements[x]):
            outcome[y] += drafted * (1 - chances[x]) * replaced
    return outcome


@pytest.mark.parametrize(("rule", "T"), CASES)
def test_the_law_of_one_position_is_the_rules_definition(rule: str, T: float) -> None:
    for P, Q in ROWS:
        expected = defined.law(rule, P, Q, defined.js(P, Q), T)
        assert law_of_one_position(rule, P, Q, T) == pytest.approx(expected, abs=1e-6), (P, Q)


@pytest.mark.parametrize(("rule", "T"), CASES)
def test_every_chance_and_every_replacement_is_the_rules_definition(rule: str, T: float) -> None:
    for P, Q in ROWS:
        chances, replacements = chances_and_replacements(rule, P, Q, T)
        for x in range(len(P)):
            if Q[x] == 0:
                continue
            expected = defined.chance(rule, P, Q, defined.js(P, Q), T, x)
            assert chances[x] == pytest.approx(expected, abs=1e-6), (P, Q, x)
            if expected < 1:
                row = defined.replacement(rule, P, Q, T, x)
                assert replacements[x] == pytest.approx(row, abs=1e-6), (P, Q, x)


@pytest.mark.parametrize("rule", ["fsd", "fsd-paper"])
def test_the_law_is_the_drafts_where_the_divergence_is_within_the_threshold_and_the_targets_elsewhere(  # noqa: E501
    rule: str,
) -> None:
    for P, Q in ROWS:
        D = defined.js(P, Q)
        within, beyond = law_of_one_position(rule, P, Q, max(D, 1e-9)), None
        assert within == pytest.approx(Q, abs=1e-6)
        if D > 1e-6:
            beyond = law_of_one_position(rule, P, Q, D * 0.999)
            assert beyond == pytest.approx(P, abs=1e-6)


Law = dict[tuple[int, ...], float]


class Enumeration:
    """The law of the first n tokens of a reply written in rounds of k drafts, all of it summed."""

    def __init__(self, rule: str, T: float, drafts: int, vocabulary: int = 4) -> None:
        self.rule, self.T, self.drafts = rule, T, drafts
        self._target = TableModel(vocabulary, seed=1, sharpness=1.0)
        self._draft = TableModel(vocabulary, seed=2, sharpness=1.0)
        self.rows = cache(self._rows)
        self._verdicts = cache(self._verdicts_of)

    def _rows(self, context: tuple[int, ...]) -> tuple[Row, Row]:
        models = (self._target, self._draft)
        P, Q = (model.logits_after(context).double().softmax(-1).tolist() for model in models)
        return P, Q

    def _verdicts_of(self, context: tuple[int, ...]) -> tuple[Row, list[Row]]:
        P, Q = self.rows(context)
        return chances_and_replacements(self.rule, P, Q, self.T)

    def law(self, tokens: int) -> Law:
        outcome: Law = {}
        self._go_on((), 0, 1.0, tokens, outcome)
        return outcome

    def _go_on(
        self, said: tuple[int, ...], drafted: int, weight: float, tokens: int, outcome: Law
    ) -> None:
        if len(said) == tokens:
            outcome[said] = outcome.get(said, 0.0) + weight
            return
        P, Q = self.rows((3, *said))
        if drafted == self.drafts:
            for bonus, p in enumerate(P):
                self._go_on((*said, bonus), 0, weight * p, tokens, outcome)
            return
        chances, replacements = self._verdicts((3, *said))
        for x, q in enumerate(Q):
            stays = weight * q * chances[x]
            self._go_on((*said, x), drafted + 1, stays, tokens, outcome)
            for y, replaced in enumerate(replacements[x]):
                goes = weight * q * (1 - chances[x]) * replaced
                if goes:
                    self._go_on((*said, y), 0, goes, tokens, outcome)

    def law_by_definition(self, tokens: int) -> Law:
        """Position by position, every one of them drafted."""
        outcome: Law = {(): 1.0}
        for _ in range(tokens):
            longer: Law = {}
            for said, weight in outcome.items():
                P, Q = self.rows((3, *said))
                row = defined.law(self.rule, P, Q, defined.js(P, Q), self.T)
                for v, probability in enumerate(row):
                    longer[(*said, v)] = weight * probability
            outcome = longer
        return outcome


@pytest.mark.parametrize("drafts", [0, 1, 2])
@pytest.mark.parametrize("rule", ["exact", "fsd"])
def test_exact_decoding_has_the_law_of_the_target_over_whole_continuations(
    rule: str, drafts: int
) -> None:
    enumeration = Enumeration(rule, 0.0, drafts)

    law = enumeration.law(3)

    assert len(law) == 4**3
    assert sum(law.values()) == pytest.approx(1)
    for said, probability in law.items():
        by_target = 1.0
        for i, token in enumerate(said):
            by_target *= enumeration.rows((3, *said[:i]))[0][token]
        assert probability == pytest.approx(by_target, abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "T"),
    [(r, T) for r, T in CASES if T in (0.0, 0.1, 0.3)],
)
def test_within_a_round_the_law_of_a_continuation_is_the_product_over_its_positions(
    rule: str, T: float
) -> None:
    enumeration = Enumeration(rule, T, drafts=2)

    law = enumeration.law(2)

    expected = enumeration.law_by_definition(2)
    assert law.keys() == expected.keys()
    for said, probability in law.items():
        assert probability == pytest.approx(expected[said], abs=1e-6), said


def test_the_bonus_token_follows_the_target_whatever_the_rule() -> None:
    """One draft per round that is always kept: tokens come from Q and from P in turn."""
    enumeration = Enumeration("fsd", 0.7, drafts=1)

    for (first, second), probability in enumeration.law(2).items():
        expected = enumeration.rows((3,))[1][first] * enumeration.rows((3, first))[0][second]
        assert probability == pytest.approx(expected, abs=1e-6)
