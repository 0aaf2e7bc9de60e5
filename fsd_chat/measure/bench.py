"""How good a pair is: how often its draft is right, what a step costs, and what that brings.

`python -m fsd_chat.measure.bench ORDER`, the process behind `fsd-chat bench`. Everything happens in
one process and in turn, so that ratios hold whatever else the machine does.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources

import msgspec
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from transformers.utils import logging

from fsd_chat.decoding.distributions import (
    filtered_logits,
    probabilities,
    raw_log_probabilities,
)
from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.loop import Reply, decode, prefill
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.settings import Knob, LiveKnob, Sampling
from fsd_chat.decoding.stopping import Stopping
from fsd_chat.distill.attention import share_heads, share_no_heads
from fsd_chat.distill.memory import rows_that_fit
from fsd_chat.distill.turns import turns_of
from fsd_chat.distill.writing import Kind, Style, Writer
from fsd_chat.engine.hardware import use_physical_cores
from fsd_chat.engine.messages import LoadPair, Message
from fsd_chat.measure.cost import Costs, costs
from fsd_chat.models.errors import ModelError
from fsd_chat.models.pair import Pair, load_pair
from fsd_chat.models.template import render

LONGEST = 96
"""Tokens of an answer."""
WIDTHS = (1, 2, 3, 4, 5, 6)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    pair: LoadPair
    conversations: int = 200
    """On whose answers overlap is measured."""
    prompts: int = 8
    """Answered in each way, side by side."""
    thresholds: tuple[float, ...] = (0.1,)
    """Of fuzzy speculative decoding."""
    lookahead: str = "2"
    """As `Knob.lookahead`."""
    temperature: float = 0.7
    as_json: bool = False


@dataclass(frozen=True)
class Overlap:
    """Of the draft's next-token distribution with the target's, along answers of the target."""

    temperature: float

    conversations: int
    positions: int
    overlap: float
    """Mean Σ min(P, Q) at the temperature: the chance that exact SD accepts a first draft."""
    greedy: float


@dataclass(frozen=True)
class Way:
    """One way to write the same answers."""

    name: str
    temperature: float
    tokens: int
    tokens_per_s: float
    """Decoding alone; the median over answers."""
    ratio: float
    """Of tokens per second to the target's alone: the median over answers of this run."""
    tokens_per_round: float
    acceptance: float | None
    fuzzy: float | None
    """Part of the tokens that only the threshold let stay."""
    perplexity: float
    """Of the answers under the target at temperature 1: what they cost beside time."""
    draft_s: float
    """Of a round, as the next two: the drafts, the verification, and all of it."""
    verify_s: float
    round_s: float

    @property
    def outside(self) -> float:
        """Part of a round that is neither model's."""
        return 1 - (self.draft_s + self.verify_s) / self.round_s


@dataclass(frozen=True)
class Findings:
    target: str
    draft: str
    device: str
    dtype: str
    threads: int
    overlap: Overlap
    costs: Costs
    ways: list[Way]


def questions() -> list[str]:
    """What the bench asks; none of it was ever trained on."""
    text = resources.files("fsd_chat.measure").joinpath("questions.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line.strip()]


def main() -> int:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    use_physical_cores()
    try:
        pair = load_pair(order.pair, lambda stage, fraction: None)
        if pair.draft is None:
            raise ModelError("bad-request", f"{pair.name} has no draft model to measure")
        found = bench(pair, order)
    except ModelError as error:
        print(f"fsd-chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if order.as_json:
        print(json.dumps(asdict(found)))
    else:
        show(found)
    return 0


def bench(pair: Pair, order: Order) -> Findings:
    """Measure `pair`, which has a draft model."""
    assert pair.draft is not None
    target, draft = pair.cached()
    assert draft is not None
    asked = questions()
    prompts = [_prompt(pair, one) for one in asked]
    overlap = measure_overlap(target, draft, asked[: order.conversations], pair, order)
    measured = costs(target, draft, prompts[0], WIDTHS)
    ways = []
    for temperature in (order.temperature, 0.0):
        ways += side_by_side(target, draft, prompts[-order.prompts :], pair, order, temperature)
    return Findings(
        target=pair.target.name,
        draft=pair.draft.name,
        device=str(pair.target.device),
        dtype=str(pair.target.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        overlap=overlap,
        costs=measured,
        ways=ways,
    )


def _prompt(pair: Pair, question: str) -> list[int]:
    return render(pair.target.tokenizer, [Message(role="user", content=question)], False)


# Overlap


def measure_overlap(
    target: CachedModel, draft: CachedModel, asked: Sequence[str], pair: Pair, order: Order
) -> Overlap:
    """Let the target answer, and compare what both say after every token of the answer."""
    sampling = Sampling(temperature=order.temperature)
    total, same, positions = 0.0, 0, 0
    answers = _answers(asked, pair, order)
    for text, count in answers:
        for model in (target, draft):
            model.rollback(0)
        rows = target.forward(text.to(target.device), rows=count)
        said = draft.forward(text.to(draft.device), rows=count).to(rows.device)
        p, q = (
            probabilities(filtered_logits(one, sampling), order.temperature) for one in (rows, said)
        )
        total += float(torch.minimum(p, q).sum())
        same += int((rows.argmax(dim=-1) == said.argmax(dim=-1)).sum())
        positions += count
    return Overlap(order.temperature, len(answers), positions, total / positions, same / positions)


def _answers(asked: Sequence[str], pair: Pair, order: Order) -> list[tuple[Tensor, int]]:
    """The target's answers, all at once: each text up to its last token but one [n], and how many
    of the answer's tokens follow its last ones."""
    loaded = pair.target
    turns = turns_of(loaded.tokenizer, loaded.name, loaded.end_ids)
    ids = [loaded.tokenizer(one, add_special_tokens=False).input_ids for one in asked]
    style = Style(temperatures=(order.temperature,), kinds=(Kind(1, LONGEST),), question_tokens=64)
    batch = min(len(ids), rows_that_fit(loaded, style, None))
    share_heads(loaded.model)
    try:
        written = Writer(loaded.model, turns, (), style, batch, 0, iter(ids))
        return [(one.tokens.long(), int((one.written == 2).sum())) for one in written]
    finally:
        share_no_heads(loaded.model)


# Speed


def side_by_side(
    target: CachedModel,
    draft: CachedModel,
    prompts: Sequence[Sequence[int]],
    pair: Pair,
    order: Order,
    temperature: float,
) -> list[Way]:
    """Every prompt in every way, one after the other, before the next prompt."""
    knobs = {
        "target only": Knob(rule="target-only"),
        "exact SD": Knob(rule="exact", lookahead=order.lookahead),
    }
    for threshold in order.thresholds:
        knobs[f"FSD, T {threshold:g}"] = Knob(
            rule="fsd", threshold=threshold, lookahead=order.lookahead
        )
    taken: dict[str, list[_Taken]] = {name: [] for name in knobs}
    sampling = Sampling(temperature=temperature)
    for number, prompt in enumerate([prompts[0], *prompts]):
        for name, knob in knobs.items():
            drafter = None if knob.rule == "target-only" else draft
            one = _timed(target, drafter, prompt, pair, knob, sampling, order, number)
            if number:
                # The first was for warming up.
                taken[name].append(one)
    alone = [one.rate for one in taken["target only"]]
    return [_way(name, temperature, found, alone) for name, found in taken.items()]


@dataclass(frozen=True)
class _Taken:
    tokens: int
    seconds: float
    rounds: int
    accepted: int
    verified: int
    fuzzy: int
    nats: float
    """That the target takes its tokens for, all together."""
    draft_s: float
    verify_s: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def _timed(
    target: CachedModel,
    draft: CachedModel | None,
    prompt: Sequence[int],
    pair: Pair,
    knob: Knob,
    sampling: Sampling,
    order: Order,
    seed: int,
) -> _Taken:
    text = list(prompt)
    for model in (target, draft):
        if model is not None:
            model.rollback(0)
            for _ in prefill(model, text[:-1], chunk=256):
                pass
    drafter = None if draft is None else ModelDrafter(draft)
    reply = Reply(
        knob=LiveKnob(knob),
        sampling=sampling,
        stopping=Stopping(pair.target.end_ids, LONGEST),
        seed=seed,
    )
    start = time.perf_counter()
    rounds = list(decode(target, drafter, text, reply))
    seconds = time.perf_counter() - start
    return _Taken(
        tokens=len(text) - len(prompt),
        seconds=seconds,
        rounds=len(rounds),
        accepted=sum(round.accepted for round in rounds),
        verified=sum(round.verified for round in rounds),
        fuzzy=sum(token.origin == "fuzzy" for round in rounds for token in round.tokens),
        nats=_nats(target, text, len(prompt)),
        draft_s=sum(round.draft_s for round in rounds),
        verify_s=sum(round.verify_s for round in rounds),
    )


def _nats(target: CachedModel, text: Sequence[int], start: int) -> float:
    """-Σ log P of the tokens of `text` from `start` on."""
    target.rollback(0)
    tokens = torch.tensor(text, device=target.device)
    rows = raw_log_probabilities(target.forward(tokens[:-1], rows=len(text) - start))
    return -float(rows.gather(-1, tokens[start:, None]).sum())


def _way(name: str, temperature: float, found: Sequence[_Taken], alone: Sequence[float]) -> Way:
    tokens = sum(one.tokens for one in found)
    verified = sum(one.verified for one in found)
    rounds = sum(one.rounds for one in found)
    return Way(
        name=name,
        temperature=temperature,
        tokens=tokens,
        tokens_per_s=statistics.median(one.rate for one in found),
        ratio=statistics.median(one.rate / rate for one, rate in zip(found, alone, strict=True)),
        tokens_per_round=tokens / rounds,
        acceptance=sum(one.accepted for one in found) / verified if verified else None,
        fuzzy=sum(one.fuzzy for one in found) / tokens if verified else None,
        perplexity=math.exp(sum(one.nats for one in found) / tokens),
        draft_s=sum(one.draft_s for one in found) / rounds,
        verify_s=sum(one.verify_s for one in found) / rounds,
        round_s=sum(one.seconds for one in found) / rounds,
    )


def show(found: Findings) -> None:
    """Print what was found as two tables."""
    console = Console(highlight=False)
    overlap, measured = found.overlap, found.costs
    console.print(
        f"[bold]{escape(found.target)} + {escape(found.draft)}[/], {found.device}, {found.dtype}, "
        f"{found.threads} threads\n"
        f"overlap {overlap.overlap:.3f}, greedy agreement {overlap.greedy:.3f} at temperature "
        f"{overlap.temperature:g} on {overlap.conversations} answers of the target "
        f"({overlap.positions:,} tokens)\n"
        f"one step of the draft {measured.draft_s * 1000:.1f} ms, of the target "
        f"{measured.target_s[1] * 1000:.1f} ms: [bold]{measured.ratio:.1%}[/]"
    )
    reading = Table(box=None, pad_edge=False)
    for width in measured.target_s:
        reading.add_column(f"{width}", justify="right")
    reading.add_row(*(f"{seconds * 1000:.1f}" for seconds in measured.target_s.values()))
    console.print("\nThe target reading so many tokens at once, ms", reading, sep="\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("way")
    for name in (
        "temp.",
        "tokens/s",
        "× target",
        "a round",
        "accepted",
        "fuzzy",
        "perpl.",
        "rest",
    ):
        table.add_column(name, justify="right")
    for way in found.ways:
        shares = ("" if share is None else f"{share:.0%}" for share in (way.acceptance, way.fuzzy))
        table.add_row(
            way.name,
            f"{way.temperature:g}",
            f"{way.tokens_per_s:.1f}",
            f"{way.ratio:.2f}",
            f"{way.tokens_per_round:.2f}",
            *shares,
            f"{way.perplexity:.1f}",
            f"{way.outside:.0%}",
        )
    console.print("\nSide by side", table, sep="\n")
    console.print(
        "a round: tokens; perpl.: perplexity of the answers under the target at temperature 1; "
        "rest: part of a round that is neither model's"
    )


if __name__ == "__main__":
    sys.exit(main())
