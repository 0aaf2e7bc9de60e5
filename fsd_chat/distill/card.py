"""What is known of a finished draft, written beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsd_chat.distill.display import duration
from fsd_chat.distill.recipe import Recipe, State
from fsd_chat.distill.training import HeldOut
from fsd_chat.measure.cost import Costs, tokens_per_round


@dataclass(frozen=True)
class Findings:
    target: str
    layers: tuple[int, ...]
    levels: tuple[int, ...]
    head_ids: int
    parameters: int
    """Trained ones."""
    conversations: int
    loss: float
    temperature: float
    held_out: HeldOut
    costs: Costs
    device: str
    dtype: str

    def acceptance(self, count: int) -> list[float]:
        """Chances for `count` drafts in a row; beyond what was measured, the deepest."""
        overlap = self.held_out.overlap
        return [overlap[min(i, len(overlap) - 1)] for i in range(count)]


def card(recipe: Recipe, state: State, found: Findings) -> str:
    """Markdown, every figure measured."""
    held, costs = found.held_out, found.costs
    reads = ", ".join(map(str, found.levels))
    features = f"reads the target's hidden states {reads}" if found.levels else "stands alone"
    asked = f"answers to {Path(recipe.prompts).name}" if recipe.prompts else "both sides its own"
    begun = "" if recipe.start is None else f" It began as {Path(recipe.start).name}."
    lines = [
        f"# A draft for {found.target}",
        "",
        f"Made by `fsd-chat distill`: layers {', '.join(map(str, found.layers))} of the target, "
        f"trained; {features}. {found.parameters / 1e6:.1f}M trained parameters; embeddings and "
        f"head are the target's own, the head with {found.head_ids:,} ids.{begun}",
        "",
        "| | |",
        "|---|---|",
        f"| data | {found.conversations:,} conversations, {state.tokens:,} tokens, written by the "
        f"target ({asked}) in {duration(state.writing_s)} |",
        f"| training | {state.trained:,} tokens in {state.steps:,} steps, "
        f"{duration(state.training_s)}, last loss {found.loss:.3f} |",
        f"| held out | {held.conversations:,} conversations, {held.positions:,} positions in "
        f"answers, temperature {found.temperature:g} |",
        f"| cost | {costs.draft_s * 1000:.1f} ms a step against {costs.target_s[1] * 1000:.1f} ms "
        f"of the target ({costs.ratio:.0%}), {found.device}, {found.dtype} |",
        "",
        "On the held-out conversations, by how far the draft is ahead of the target. Overlap is "
        "Σ min(P, Q), the chance of acceptance under exact speculative decoding; greedy agreement "
        "is how often both find the same token likeliest.",
        "",
        "| drafted token | overlap | greedy agreement |",
        "|---|---|---|",
    ]
    for i, (overlap, greedy) in enumerate(zip(held.overlap, held.greedy, strict=True), start=1):
        lines.append(f"| {i} | {overlap:.3f} | {greedy:.3f} |")
    lines += [
        "",
        "What these predict for exact speculative decoding:",
        "",
        "| drafts a round | tokens a round | speed-up |",
        "|---|---|---|",
    ]
    for count in sorted(width - 1 for width in costs.target_s if width > 1):
        acceptance = found.acceptance(count)
        lines.append(
            f"| {count} | {tokens_per_round(acceptance):.2f} | {costs.speed_up(acceptance):.2f}× |"
        )
    return "\n".join(lines) + "\n"
