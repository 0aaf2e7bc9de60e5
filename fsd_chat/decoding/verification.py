"""Verifying drafted tokens: from the target's rows to the tokens that are committed.

Everything is vectorised over the k drafts, in float32 and on the target's device, without a branch
that depends on data; the result comes to the host in one transfer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_chat.decoding import divergence
from fsd_chat.decoding.distributions import (
    filtered_logits,
    probabilities,
    raw_log_probabilities,
    sample,
)
from fsd_chat.decoding.drafting import Proposal
from fsd_chat.decoding.model import NonFiniteTarget
from fsd_chat.decoding.records import Token
from fsd_chat.decoding.rules import EXACT, RULES, Evidence, Rule, coin
from fsd_chat.decoding.settings import Knob, Sampling


@dataclass(frozen=True)
class TargetRows:
    """The target's k + 1 rows: one per drafted token, and one for the token after them all."""

    logits: Tensor
    """[k + 1, V] as the target gave them."""
    filtered: Tensor
    """[k + 1, V] after penalties, temperature and filters; -inf for what the user rules out."""
    probabilities: Tensor
    """P [k + 1, V]."""
    best: Tensor
    """The largest of each filtered row [k + 1]."""

    @staticmethod
    def of(logits: Tensor, penalised: Tensor, sampling: Sampling) -> TargetRows:
        filtered = filtered_logits(penalised, sampling)
        law = probabilities(filtered, sampling.temperature)
        return TargetRows(logits, filtered, law, filtered.amax(dim=-1))

    @property
    def usable(self) -> Tensor:
        """Which rows are distributions, both as given and under the user's settings [k + 1].

        A row with NaN or +inf still has it there, and one of nothing but -inf is that there too.
        """
        return self.best.isfinite()

    def rules_out(self, tokens: Tensor) -> Tensor:
        """Which of tokens [k] have no probability at all under the user's settings [k].

        Temperature 0 rules nothing out by itself, or no rule could differ from greedy decoding.
        """
        k = tokens.shape[0]
        below_best = self.filtered[:k].gather(-1, tokens[:, None])[:, 0] - self.best[:k]
        return below_best.exp() == 0


def verify(
    rows: TargetRows,
    proposal: Proposal | None,
    knob: Knob,
    threshold: Tensor,
    exact_positions: int,
    generator: torch.Generator,
) -> tuple[Token, ...]:
    """Judge the drafts and draw the token after them.

    threshold: the knob's T as a scalar on the device. exact_positions: how many of the next tokens
    must follow exact speculative decoding whatever the rule. Returns the committed tokens, 1 to
    k + 1 of them. Raises NonFiniteTarget if a row that was needed is no distribution.
    """
    if proposal is None:
        return _target_alone(rows, generator)
    k = proposal.tokens.shape[0]
    spectrum = _spectrum(rows, proposal)
    evidence = Evidence(
        rows.probabilities[:k],
        torch.where(proposal.finite[:, None], proposal.drawn_from, 0.0),
        proposal.tokens,
        _divergence(spectrum, rows, proposal, knob, generator),
    )
    stays, by_coin = _judge(evidence, rows, proposal, knob, threshold, exact_positions, generator)
    kept = stays.long().cumprod(dim=0).sum()
    last_row = _row_after(evidence, rows, knob, threshold, kept, exact_positions)
    last = sample(last_row, generator)
    verdict = _Verdict(evidence, rows, spectrum, kept, last, by_coin)
    return verdict.transfer()


def _target_alone(rows: TargetRows, generator: torch.Generator) -> tuple[Token, ...]:
    """Nothing was drafted: one token from the target."""
    P = rows.probabilities[-1:]
    token = sample(P, generator)
    probability = P.gather(-1, token[:, None])[0]
    id, chance, usable = torch.cat([token.float(), probability, rows.usable.float()]).tolist()
    if not usable:
        raise NonFiniteTarget(_NON_FINITE)
    return (Token(id=int(id), origin="target", target_probability=chance),)


def _spectrum(rows: TargetRows, proposal: Proposal) -> Tensor:
    """Every whole-row divergence before any sampling setting [k, 5]; inf where the draft's row is
    no distribution."""
    k = proposal.tokens.shape[0]
    found = divergence.spectrum(raw_log_probabilities(rows.logits[:k]), proposal.log_raw)
    return torch.where(proposal.finite[:, None], found, torch.inf)


def _divergence(
    spectrum: Tensor, rows: TargetRows, proposal: Proposal, knob: Knob, generator: torch.Generator
) -> Tensor:
    """D(P, Q) as the knob defines it [k]; inf where the draft's row is no distribution."""
    k = proposal.tokens.shape[0]
    if knob.form == "full" and not knob.on_processed:
        return spectrum[:, divergence.NAMES.index(knob.divergence)]
    if knob.on_processed:
        log_p, log_q = raw_log_probabilities(rows.filtered[:k]), proposal.log_processed
    else:
        log_p, log_q = raw_log_probabilities(rows.logits[:k]), proposal.log_raw
    measured = divergence.measure(log_p, log_q, knob, generator)
    return torch.where(proposal.finite, measured, torch.inf)


def _judge(
    evidence: Evidence,
    rows: TargetRows,
    proposal: Proposal,
    knob: Knob,
    threshold: Tensor,
    exact_positions: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Which drafts stay, and which of them exact speculative decoding would have kept: twice [k].

    One uniform number per draft serves both, so that a draft that stays without the coin's leave
    can be told apart.
    """
    u = torch.rand(evidence.tokens.shape[0], device=threshold.device, generator=generator)
    by_coin = u < coin(evidence)
    chance = _acceptance(evidence, rows, knob, threshold, exact_positions)
    return (u < chance) & proposal.finite, by_coin


def _acceptance(
    evidence: Evidence, rows: TargetRows, knob: Knob, threshold: Tensor, exact_positions: int
) -> Tensor:
    """The chance of each draft to stay [k], guards included."""
    chance = RULES[knob.rule].accept(evidence, threshold)
    if exact_positions > 0:
        chance = torch.cat([coin(evidence)[:exact_positions], chance[exact_positions:]])
    return chance.masked_fill(rows.rules_out(evidence.tokens), 0.0)


def _row_after(
    evidence: Evidence,
    rows: TargetRows,
    knob: Knob,
    threshold: Tensor,
    kept: Tensor,
    exact_positions: int,
) -> Tensor:
    """Weights of the token after the `kept` drafts [1, V]: a replacement, or the bonus."""
    k = evidence.tokens.shape[0]
    P = rows.probabilities.index_select(0, kept[None])
    rejected = evidence.row(kept.clamp_max(k - 1)[None])
    replacement = _replacement(rejected, RULES[knob.rule], threshold)
    if exact_positions > 0:
        exactly = _replacement(rejected, EXACT, threshold)
        replacement = torch.where(kept < exact_positions, exactly, replacement)
    return torch.where(kept < k, replacement, P)


def _replacement(rejected: Evidence, rule: Rule, threshold: Tensor) -> Tensor:
    weights = rule.replace(rejected, threshold)
    # Where P and Q agree, all that is left of the residual is rounding, and a draft whose row was
    # no distribution leaves nothing to make up for: P is then the right law.
    vanished = weights.sum(dim=-1, keepdim=True) <= _ROUNDING
    unknown = rejected.draft_probability[:, None] <= 0
    return torch.where(vanished | unknown, rejected.target, weights)


_ROUNDING = 1e-6
_NON_FINITE = (
    "the target model gave a row that is no probability distribution (NaN or infinite logits: "
    "try another dtype, for example --dtype float32), or the logit bias leaves no token at all"
)


@dataclass(frozen=True)
class _Verdict:
    evidence: Evidence
    rows: TargetRows
    spectrum: Tensor
    kept: Tensor
    last: Tensor
    by_coin: Tensor

    def transfer(self) -> tuple[Token, ...]:
        """Everything the host needs, as one float32 matrix [k + 1, 6 + 5] in one transfer.

        float32 holds every id below 2^24.
        """
        k = self.evidence.tokens.shape[0]
        ids = torch.cat([self.evidence.tokens, self.last])
        position = torch.arange(k + 1, device=ids.device)
        usable = (self.rows.usable | (position > self.kept)).all()
        P, Q = self.evidence.target, self.evidence.draft
        at_every = [
            ids.float(),
            torch.cat([self.evidence.target_probability, self._at_last(self.rows.probabilities)]),
            torch.cat([self.evidence.draft_probability, self._at_last(Q)]),
        ]
        at_drafts = [
            self.evidence.divergence,
            torch.minimum(P, Q).sum(dim=-1),
            self.by_coin,
            *self.spectrum.unbind(dim=-1),
        ]
        table = torch.cat([torch.stack(at_every), pad(torch.stack(at_drafts), (0, 1))])
        state = torch.stack([self.kept, usable])
        state = pad(state, (0, table.shape[0] - 2))
        return self._records(torch.cat([state[:, None], table], dim=1).T.tolist())

    def _at_last(self, probabilities: Tensor) -> Tensor:
        """Of the token after the drafts, in its own row or the last there is [1]."""
        return probabilities[self.kept.clamp_max(probabilities.shape[0] - 1), self.last]

    def _records(self, table: list[list[float]]) -> tuple[Token, ...]:
        state, *drafts, last = table
        kept, usable = int(state[0]), bool(state[1])
        if not usable:
            raise NonFiniteTarget(_NON_FINITE)
        tokens = [_drafted(row) for row in drafts[:kept]]
        if kept == len(drafts):
            bonus = Token(id=int(last[0]), origin="bonus", target_probability=last[1])
            return (*tokens, bonus)
        rejected = drafts[kept]
        recovered = Token(
            id=int(last[0]),
            origin="recovered",
            target_probability=last[1],
            draft_probability=last[2],
            divergence=rejected[3],
            exact=rejected[4],
            rejected=int(rejected[0]),
            spectrum=tuple(rejected[6:]),
        )
        return (*tokens, recovered)


def _drafted(row: list[float]) -> Token:
    return Token(
        id=int(row[0]),
        origin="accepted" if row[5] else "fuzzy",
        target_probability=row[1],
        draft_probability=row[2],
        divergence=row[3],
        exact=row[4],
        spectrum=tuple(row[6:]),
    )
