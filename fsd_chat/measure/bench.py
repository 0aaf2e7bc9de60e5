"""How good a pair is: how often its draft is right, what a step costs, and what that brings.

`python -m fsd_chat.measure.bench ORDER`, the process behind `fsd-chat bench`. Everything happens in
one process and in turn, so that ratios hold whatever else the machine does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources

import msgspec
import torch
from torch import Tensor
from transformers.utils import logging

from fsd_chat.decoding.distributions import (
    filtered_logits,
    probabilities,
    raw_log_probabilities,
)
from fsd_chat.decoding.model import CachedModel
from fsd_chat.decoding.settings import Knob, Sampling
from fsd_chat.distill.attention import share_heads, share_no_heads
from fsd_chat.distill.memory import rows_that_fit
from fsd_chat.distill.turns import turns_of
from fsd_chat.distill.writing import Kind, Style, Writer
from fsd_chat.engine.hardware import use_physical_cores
from fsd_chat.engine.messages import LoadPair, Message, Quantization
from fsd_chat.measure.bookkeeping import Bookkeeping, bookkeeping
from fsd_chat.measure.cost import Costs, costs
from fsd_chat.measure.peers import Transformers
from fsd_chat.measure.show import show
from fsd_chat.measure.speed import LONGEST, Ours, Way, Writes, side_by_side
from fsd_chat.measure.turns import LaterTurn, later_turn
from fsd_chat.models.errors import ModelError
from fsd_chat.models.loading import quantized
from fsd_chat.models.pair import Pair, load_pair
from fsd_chat.models.template import render

WIDTHS = (1, 2, 3, 4, 5, 6)
JUDGED = 40
"""Answers on which the effect of fewer bits is measured."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    pair: LoadPair
    conversations: int = 200
    """On whose answers overlap is measured."""
    prompts: int = 8
    """Answered in each way, side by side."""
    thresholds: tuple[float, ...] = (0.1,)
    """Of fuzzy speculative decoding."""
    lookahead: str = "adaptive"
    """As `Knob.lookahead`."""
    temperature: float = 0.7
    transformers: bool = False
    """Also transformers' own `generate`, with the weights as they are stored."""
    bits: tuple[Quantization, ...] = ()
    """The target alone with its weights so as well."""
    as_json: bool = False

    @property
    def fixed(self) -> int:
        """Tokens to draft where it has to be a number: transformers has no policy of ours, and a
        measure of one round wants every round alike."""
        return int(self.lookahead) if self.lookahead.isdigit() else 1


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
class Findings:
    target: str
    draft: str
    device: str
    dtype: str
    quantization: str
    """Of the pair, where nothing else is said."""
    threads: int
    overlap: Overlap
    divergences: dict[str, float]
    """Mean KL(P‖P') in nats at temperature 1 of the target as it is stored from the target with
    fewer bits, along its answers."""
    costs: Costs
    later_turn: LaterTurn
    bookkeeping: Bookkeeping
    ways: list[Way]


def main() -> int:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    use_physical_cores()
    try:
        found = bench(order)
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


def bench(order: Order) -> Findings:
    """Load the pair and measure it. Raises ModelError."""
    stored = load_pair(_as_stored(order.pair), lambda stage, fraction: None)
    if stored.draft is None:
        raise ModelError("bad-request", f"{stored.name} has no draft model to measure")
    asked = questions()
    prompts = [_prompt(stored, one) for one in asked]
    # Before anything is quantised: that may replace the weights of a model.
    answers = _answers(asked[: order.conversations], stored, order)
    pair = _with_bits(stored, order.pair.target.quantize)
    target, draft = pair.cached()
    assert draft is not None
    overlap = measure_overlap(target, draft, answers, order.temperature)
    measured = costs(target, draft, prompts[0], WIDTHS)
    said = [token for text, _ in answers for token in text.tolist()]
    knob = Knob(rule="fsd", threshold=order.thresholds[0], lookahead=str(order.fixed))
    later = later_turn(target, draft, said, knob)
    beside = bookkeeping(
        pair.vocabulary,
        target.device,
        pair.target.dtype,
        knob,
        Sampling(temperature=order.temperature),
    )
    beside_it = [_with_bits(stored, bits) for bits in order.bits]
    others = {one.target.quantization: one.cached()[0] for one in beside_it}
    ways = []
    for temperature in (order.temperature, 0.0):
        chosen = _ways(order, pair, (target, draft), others, stored, temperature)
        ways += side_by_side(chosen, prompts[-order.prompts :], temperature, target)
    exact = stored.cached()[0]
    fewer = {pair.target.quantization: target, **others}
    return Findings(
        target=pair.target.name,
        draft=stored.draft.name,
        device=str(pair.target.device),
        dtype=str(pair.target.dtype).removeprefix("torch."),
        quantization=pair.target.quantization,
        threads=torch.get_num_threads(),
        overlap=overlap,
        divergences={
            bits: measure_divergence(exact, one, answers[:JUDGED])
            for bits, one in fewer.items()
            if bits != "none"
        },
        costs=measured,
        later_turn=later,
        bookkeeping=beside,
        ways=ways,
    )


def _as_stored(pair: LoadPair) -> LoadPair:
    target = msgspec.structs.replace(pair.target, quantize="none")
    draft = pair.draft and msgspec.structs.replace(pair.draft, quantize="none")
    return msgspec.structs.replace(pair, target=target, draft=draft)


def _with_bits(stored: Pair, bits: Quantization) -> Pair:
    """`stored`, which stays as it is, with weights of so many bits. Raises ModelError where its
    weights would have to be replaced: nothing could be compared with them then."""
    if bits == "none":
        return stored
    assert stored.draft is not None
    for one in (stored.target, stored.draft):
        if one.layers is None:
            raise ModelError(
                "unsupported",
                f"{one.name} runs on transformers' own layers, where {bits} replaces the weights "
                "that it would be compared with; measure it with --quantize none",
            )
    target = quantized(stored.target, bits)
    same = stored.draft is stored.target
    return replace(stored, target=target, draft=target if same else quantized(stored.draft, bits))


def _ways(
    order: Order,
    pair: Pair,
    cached: tuple[CachedModel, CachedModel],
    others: Mapping[Quantization, CachedModel],
    stored: Pair,
    temperature: float,
) -> dict[str, Writes]:
    target, draft = cached
    sampling, end_ids = Sampling(temperature=temperature), pair.target.end_ids
    alone = Knob(rule="target-only")
    ways: dict[str, Writes] = {"target only": Ours(target, None, alone, sampling, end_ids)}
    for bits, other in others.items():
        ways[f"target only, {bits}"] = Ours(other, None, alone, sampling, end_ids)
    if order.transformers:
        ways["transformers"] = Transformers(stored, sampling)
        ways["transformers + draft"] = Transformers(stored, sampling, order.fixed)
    knobs = {"exact SD": Knob(rule="exact", lookahead=order.lookahead)}
    for threshold in order.thresholds:
        knobs[f"FSD, T {threshold:g}"] = Knob(
            rule="fsd", threshold=threshold, lookahead=order.lookahead
        )
    return ways | {
        name: Ours(target, draft, knob, sampling, end_ids) for name, knob in knobs.items()
    }


def questions() -> list[str]:
    """What the bench asks; none of it was ever trained on."""
    text = resources.files("fsd_chat.measure").joinpath("questions.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line.strip()]


def _prompt(pair: Pair, question: str) -> list[int]:
    return render(pair.target.tokenizer, [Message(role="user", content=question)], False)


# Overlap


Answer = tuple[Tensor, int]
"""A text up to its last token but one [n], and how many of the target's tokens follow its last
ones."""


def measure_overlap(
    target: CachedModel, draft: CachedModel, answers: Sequence[Answer], temperature: float
) -> Overlap:
    """Compare what both say after every token of the target's answers."""
    sampling = Sampling(temperature=temperature)
    total, same, positions = 0.0, 0, 0
    for text, count in answers:
        for model in (target, draft):
            model.rollback(0)
        rows = target.forward(text.to(target.device), rows=count)
        said = draft.forward(text.to(draft.device), rows=count).to(rows.device)
        p, q = (probabilities(filtered_logits(one, sampling), temperature) for one in (rows, said))
        total += float(torch.minimum(p, q).sum())
        same += int((rows.argmax(dim=-1) == said.argmax(dim=-1)).sum())
        positions += count
    return Overlap(temperature, len(answers), positions, total / positions, same / positions)


def measure_divergence(exact: CachedModel, other: CachedModel, answers: Sequence[Answer]) -> float:
    """Mean KL(exact‖other) in nats at temperature 1, after every token of the answers."""
    total, positions = 0.0, 0
    for text, count in answers:
        rows = []
        for model in (exact, other):
            model.rollback(0)
            rows.append(raw_log_probabilities(model.forward(text.to(model.device), rows=count)))
        total += float((rows[0].exp() * (rows[0] - rows[1])).sum())
        positions += count
    return total / positions


def _answers(asked: Sequence[str], pair: Pair, order: Order) -> list[Answer]:
    """The target's answers, all at once."""
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


if __name__ == "__main__":
    sys.exit(main())
