"""What a distillation takes, said before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from fsd_chat.distill.rolling import ROOM
from fsd_chat.distill.training import Course
from fsd_chat.distill.writing import Style
from fsd_chat.models.errors import ModelError
from fsd_chat.models.hardware import memory_of
from fsd_chat.models.loading import LoadedModel

MOST_ROWS = {"cpu": 224, "mps": 64, "cuda": 512}
"""Conversations at once beyond which nothing is gained any more (measured on a CPU)."""
FOR_ROWS = 0.4
"""Part of what is left beside the target's weights that conversations may take."""
COPIES = 16
"""Bytes of a trained weight: itself, its gradient and AdamW's two moments, in float32."""
ROWS_HELD = 5
"""Rows over the head's ids that a position's losses keep for the way back, in float32."""


def check_memory(loaded: LoadedModel, layers: Sequence[int], head: int, course: Course) -> float:
    """Bytes that training takes, the target among them. Raises ModelError where there are less."""
    model = loaded.model
    hidden = model.config.get_text_config().hidden_size
    target = _bytes(model)
    total = model.config.get_text_config().num_hidden_layers
    layer = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name) / total
    draft = COPIES * (layer * len(layers) + 4 * hidden**2) + 4 * hidden * head * 2
    losses = 4.0 * ROWS_HELD * course.depth * course.batch_tokens * head
    need: float = target + draft + losses
    room = memory_of(loaded.device)
    if room is not None and need > room:
        raise ModelError(
            "memory",
            f"distilling a draft of {len(layers)} layers for {loaded.name} needs about "
            f"{need / 1e9:.1f} GB ({target / 1e9:.1f} for the target, {draft / 1e9:.1f} for the "
            f"draft and its optimiser, {losses / 1e9:.1f} for a step) and {loaded.device} has "
            f"{room / 1e9:.1f} GB; choose fewer --layers, a smaller --head or another --device",
        )
    return need


def rows_that_fit(loaded: LoadedModel, style: Style, wanted: int | None) -> int:
    """Conversations that the target can write at once."""
    most = wanted or MOST_ROWS.get(loaded.device.type, 64)
    room = memory_of(loaded.device)
    if room is None:
        return most
    text = loaded.model.config.get_text_config()
    longest = style.longest + 2 * ROOM
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    # Keys and values, and a second copy while a cache grows.
    row = 4 * text.num_hidden_layers * heads * size * loaded.dtype.itemsize * longest
    row += 10 * text.vocab_size
    left = FOR_ROWS * max(0, room - _bytes(loaded.model))
    return max(1, min(most, int(left / row)))


def _bytes(model: PreTrainedModel) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())
