"""From logits to probabilities, and from probabilities to tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fsd_chat.decoding.distributions import (
    filtered_logits,
    nucleus,
    point_masses,
    probabilities,
    raw_log_probabilities,
    sample,
)
from fsd_chat.decoding.settings import Sampling

INF = math.inf


def random_rows(seed: int, rows: int = 200, vocabulary: int = 40) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def admitted(logits: list[float], sampling: Sampling) -> list[int]:
    kept = filtered_logits(torch.tensor([logits]), sampling)[0] > -INF
    return kept.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("k", [1, 2, 7, 39, 40, 100])
def test_top_k_admits_what_transformers_admits(k: int) -> None:
    logits = random_rows(1)

    ours = filtered_logits(logits, Sampling(temperature=1.0, top_k=k))

    assert torch.equal(ours, TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.99])
def test_top_p_admits_what_transformers_admits(p: float) -> None:
    logits = random_rows(2)

    ours = filtered_logits(logits, Sampling(temperature=1.0, top_p=p))

    assert torch.equal(ours, TopPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 1.0])
def test_min_p_admits_what_transformers_admits(p: float) -> None:
    logits = random_rows(3)

    ours = filtered_logits(logits, Sampling(temperature=1.0, min_p=p))

    assert torch.equal(ours, MinPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_temperature_and_all_filters_together_act_in_the_order_of_transformers(
    temperature: float,
) -> None:
    logits = random_rows(4)
    theirs = LogitsProcessorList(
        [
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(12),
            TopPLogitsWarper(0.8),
            MinPLogitsWarper(0.05),
        ]
    )

    ours = filtered_logits(logits, Sampling(temperature, top_k=12, top_p=0.8, min_p=0.05))

    expected = theirs(None, logits).softmax(dim=-1)
    assert torch.allclose(ours.softmax(dim=-1), expected, atol=1e-6)
    assert torch.equal(ours == -INF, expected == 0)


def test_each_filter_acts_on_what_the_one_before_it_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]

    assert admitted(logits, Sampling(1.0, top_p=0.5)) == [0, 1]
    # Of the two likeliest, 0.4 is already four sevenths of the mass.
    assert admitted(logits, Sampling(1.0, top_k=2, top_p=0.5)) == [0]
    assert admitted(logits, Sampling(1.0, top_p=0.5, min_p=0.8)) == [0]


def test_the_likeliest_token_is_always_admitted() -> None:
    settings = Sampling(1.0, top_k=1, top_p=1e-9, min_p=1.0)

    kept = filtered_logits(random_rows(5), settings) > -INF

    assert torch.equal(kept.sum(dim=-1), torch.ones(200))
    assert torch.equal(kept.float().argmax(dim=-1), random_rows(5).argmax(dim=-1))


def test_filters_that_are_off_change_nothing() -> None:
    logits = random_rows(6)

    assert torch.equal(filtered_logits(logits, Sampling(temperature=1.0)), logits)


def test_temperature_zero_admits_what_temperature_one_admits() -> None:
    logits = random_rows(7)

    at_zero = filtered_logits(logits, Sampling(0.0, top_k=9, top_p=0.7, min_p=0.02))
    at_one = filtered_logits(logits, Sampling(1.0, top_k=9, top_p=0.7, min_p=0.02))

    assert torch.equal(at_zero, at_one)


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-37])
def test_a_temperature_close_to_zero_is_nearly_greedy_and_never_nan(temperature: float) -> None:
    logits = torch.tensor([[60.0, 59.0, -1e4, -INF]])

    row = probabilities(filtered_logits(logits, Sampling(temperature)), temperature)

    assert row.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_temperature_zero_is_a_point_mass_on_the_likeliest_token() -> None:
    logits = random_rows(8)

    rows = probabilities(logits, 0.0)

    assert torch.equal(rows.argmax(dim=-1), logits.argmax(dim=-1))
    assert torch.equal(rows.max(dim=-1).values, torch.ones(200))
    assert torch.equal(rows.sum(dim=-1), torch.ones(200))


def test_temperature_zero_tells_logits_apart_that_softmax_cannot() -> None:
    close = torch.tensor([[1e-9, 2e-9]])
    assert close.softmax(dim=-1)[0, 0] == close.softmax(dim=-1)[0, 1]

    assert probabilities(close, 0.0).tolist() == [[0.0, 1.0]]


def test_probabilities_are_of_float32_even_for_rows_of_half_precision() -> None:
    half = random_rows(9).half()

    assert filtered_logits(half, Sampling(0.7)).dtype == torch.float32
    assert raw_log_probabilities(half).dtype == torch.float32


def test_a_nucleus_is_the_fewest_likeliest_tokens_that_hold_the_mass() -> None:
    rows = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()

    assert nucleus(rows, 0.4).tolist() == [[False, True, False, False]]
    assert nucleus(rows, 0.7).tolist() == [[False, True, False, True]]
    assert nucleus(rows, 0.8).tolist() == [[False, True, True, True]]


def test_a_nucleus_of_nothing_still_holds_the_likeliest_token() -> None:
    assert nucleus(torch.tensor([[0.0, 2.0, 1.0]]), 0.0).tolist() == [[False, True, False]]


def test_point_masses_have_all_their_mass_on_their_tokens() -> None:
    assert point_masses(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_samples_follow_the_weights() -> None:
    weights = torch.tensor([0.5, 0.0, 0.2, 0.3]) * 7
    draws = sample(weights.expand(40_000, -1), torch.Generator().manual_seed(1))

    shares = torch.bincount(draws, minlength=4) / 40_000

    assert shares.tolist() == pytest.approx([0.5, 0.0, 0.2, 0.3], abs=0.01)
    assert shares[1] == 0


@pytest.mark.parametrize("vocabulary", [255, 256, 257, 1000, 50_000])
def test_samples_of_long_rows_follow_the_weights(vocabulary: int) -> None:
    """Wherever in a row the weight lies; nothing lies between."""
    places = [1, vocabulary // 3, vocabulary // 2, vocabulary - 1]
    row = torch.zeros(vocabulary)
    row[places] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    drawn = sample(row.expand(2_000, -1), torch.Generator().manual_seed(4))
    counts = torch.bincount(drawn, minlength=vocabulary) / 2_000
    assert counts[places].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.04)
    assert int((counts > 0).sum()) == 4


def test_a_sample_is_a_token_with_weight_though_the_random_number_rounds_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.ones(shape).double())

    assert sample(torch.tensor([[0.0, 3.0, 2.0, 0.0, 0.0]]), torch.Generator()).tolist() == [2]


def test_a_sample_of_a_row_of_nan_is_an_id_that_there_is() -> None:
    rows = torch.tensor([[math.nan, 1.0, 1.0], [1.0, 1.0, math.nan], [math.nan] * 3])

    assert all(0 <= token < 3 for token in sample(rows, torch.Generator().manual_seed(1)).tolist())


def test_a_sample_reaches_every_part_of_a_long_row_of_equal_weights() -> None:
    row = torch.full((1, 150_000), 1 / 150_000)
    drawn = sample(row.expand(3_000, -1), torch.Generator().manual_seed(6))
    assert int(drawn.max()) > 149_500
    assert float(drawn.double().mean()) == pytest.approx(75_000, rel=0.03)


def test_sampling_follows_the_seed() -> None:
    weights = random_rows(10).softmax(dim=-1)

    first = sample(weights, torch.Generator().manual_seed(3))
    again = sample(weights, torch.Generator().manual_seed(3))
    other = sample(weights, torch.Generator().manual_seed(4))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_sampling_a_point_mass_can_only_give_its_token() -> None:
    tokens = torch.arange(50).repeat(100)

    assert torch.equal(sample(point_masses(tokens, 50), torch.Generator().manual_seed(5)), tokens)
