"""Rows that are padded to different widths."""

from __future__ import annotations

import pytest
import torch
from families.test_pairs import TOKENS, padded
from families.tiny import cached, some_text, written

from fsd_chat.decoding.divergence import WHOLE_ROW
from fsd_chat.decoding.drafting import ModelDrafter
from fsd_chat.decoding.settings import Knob, Sampling


@pytest.mark.parametrize("name", WHOLE_ROW)
def test_a_divergence_is_of_rows_cut_to_the_shared_tokens_before_their_softmax(name: str) -> None:
    """Cut after it, the rows would no longer be distributions."""
    target, draft = padded(112, seed=1), padded(104, seed=2)
    text = some_text(9, seed=2, vocabulary=TOKENS)
    with torch.inference_mode():
        rows = [model(torch.tensor([text])).logits[:, -1] for model in (target, draft)]
    cut = [row[:, :TOKENS].log_softmax(dim=-1) for row in rows]
    late = [row.log_softmax(dim=-1)[:, :TOKENS] for row in rows]
    expected = WHOLE_ROW[name](*cut).item()
    assert WHOLE_ROW[name](*late).item() != pytest.approx(expected, rel=0.05)

    round, *_ = written(
        cached(target, vocabulary=TOKENS),
        ModelDrafter(cached(draft, vocabulary=TOKENS)),
        text,
        4,
        knob=Knob(rule="fsd", divergence=name),
        sampling=Sampling(temperature=1.0),
        draft_length=1,
    )

    assert round.tokens[0].divergence == pytest.approx(expected, rel=1e-4)
