"""How far apart two distributions are, and in which form that is asked."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from fsd_chat.decoding.distributions import raw_log_probabilities
from fsd_chat.decoding.divergence import (
    LARGEST,
    WHOLE_ROW,
    fold_top_k,
    kl,
    measure,
    restrict_top_p,
    spectrum,
)
from fsd_chat.decoding.settings import Knob

SOURCE = torch.Generator().manual_seed(0)


def row(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def measured(log_p: Tensor, log_q: Tensor, knob: Knob) -> list[float]:
    values: list[float] = measure(log_p, log_q, knob, SOURCE).tolist()
    return values


# P(A), Q(A), then KL(Q‖P), KL(P‖Q), JS, JS as released, TV.
TWO_OUTCOMES = [
    (0.6, 0.7, 0.022, 0.023, 0.006, 0.006, 0.10),
    (0.5, 0.8, 0.193, 0.223, 0.051, 0.053, 0.30),
    (0.3, 0.9, 0.794, 1.033, 0.205, 0.252, 0.60),
    (0.1, 0.9, 1.758, 1.758, 0.368, 0.511, 0.80),
    (0.01, 0.99, 4.503, 4.503, 0.637, 1.614, 0.98),
]


@pytest.mark.parametrize("line", TWO_OUTCOMES)
def test_two_outcomes_have_the_divergences_of_the_published_table(line: tuple[float, ...]) -> None:
    p, q, *expected = line
    names = ("kl-draft-target", "kl-target-draft", "js", "js-as-released", "tv")

    for name, value in zip(names, expected, strict=True):
        found = WHOLE_ROW[name](row(p, 1 - p), row(q, 1 - q)).item()
        assert found == pytest.approx(value, abs=0.0005), name


def test_the_two_directions_of_kl_are_not_confused() -> None:
    P, Q = row(0.5, 0.5), row(0.9, 0.1)
    from_target = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    from_draft = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)

    assert kl(P, Q).item() == pytest.approx(from_target)
    assert WHOLE_ROW["kl-target-draft"](P, Q).item() == pytest.approx(from_target)
    assert WHOLE_ROW["kl-draft-target"](P, Q).item() == pytest.approx(from_draft)


def test_js_is_the_mean_of_the_divergences_to_the_mixture_and_the_released_one_from_it() -> None:
    P, Q = row(0.7, 0.2, 0.1), row(0.1, 0.3, 0.6)
    M = ((P.exp() + Q.exp()) / 2).log()

    assert WHOLE_ROW["js"](P, Q).item() == pytest.approx((kl(P, M) + kl(Q, M)).item() / 2)
    released = (kl(M, P) + kl(M, Q)).item() / 2
    assert WHOLE_ROW["js-as-released"](P, Q).item() == pytest.approx(released)


@pytest.mark.parametrize("name", ["js", "tv"])
def test_rounding_never_lifts_a_bounded_divergence_over_its_bound(name: str) -> None:
    vocabulary = 50_000
    P, Q = torch.randn(2, 20, vocabulary, generator=torch.Generator().manual_seed(1)) * 3
    P[:, ::2] -= 1e4
    Q[:, 1::2] -= 1e4

    values = WHOLE_ROW[name](raw_log_probabilities(P), raw_log_probabilities(Q))

    assert bool((values <= torch.tensor(LARGEST[name])).all())
    assert values.tolist() == pytest.approx([LARGEST[name]] * 20, abs=1e-5)


@pytest.mark.parametrize("name", WHOLE_ROW)
def test_no_divergence_is_below_zero_and_equal_rows_are_at_it(name: str) -> None:
    P, Q = torch.randn(2, 200, 8, generator=torch.Generator().manual_seed(2)) * 4
    log_p, log_q = raw_log_probabilities(P), raw_log_probabilities(Q)

    assert bool((WHOLE_ROW[name](log_p, log_q) >= 0).all())
    assert WHOLE_ROW[name](log_p, log_p).tolist() == pytest.approx([0.0] * 200, abs=1e-6)


INF = math.inf
ODD_ROWS = [
    [0.0, 0.0, 0.0, 0.0],
    [1e4, -1e4, 1e4, 0.0],
    [-1e4, 1e4, -1e4, -1e4],
    [-INF, 0.0, -INF, 2.0],
    [3.0, -INF, -INF, -INF],
    [-INF, -INF, 1e4, -1e4],
    [65504.0, -65504.0, 0.0, -INF],
    [-100.0, -95.0, 0.0, -104.0],
]


@pytest.mark.parametrize("form", ["full", "top-k", "top-p", "random"])
@pytest.mark.parametrize("name", WHOLE_ROW)
def test_no_finite_row_however_odd_gives_nan(name: str, form: str) -> None:
    pairs = torch.tensor(list(product(ODD_ROWS, ODD_ROWS)))
    log_p, log_q = raw_log_probabilities(pairs[:, 0]), raw_log_probabilities(pairs[:, 1])

    values = measured(log_p, log_q, Knob(divergence=name, form=form, form_k=2, form_p=0.6))

    assert not any(math.isnan(value) for value in values)
    assert all(value >= 0 for value in values)
    assert not bool(spectrum(log_p, log_q).isnan().any())


@pytest.mark.parametrize("vocabulary", [4, 50_000])
def test_the_spectrum_is_every_divergence_by_itself(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(6)
    pairs = [torch.randn(2, 40, vocabulary, generator=generator) * 3]
    if vocabulary == 4:
        pairs.append(torch.tensor(list(product(ODD_ROWS, ODD_ROWS))).transpose(0, 1))
    for P, Q in pairs:
        log_p, log_q = raw_log_probabilities(P), raw_log_probabilities(Q)
        found = spectrum(log_p, log_q)
        for column, name in enumerate(WHOLE_ROW):
            expected = WHOLE_ROW[name](log_p, log_q)
            torch.testing.assert_close(found[:, column], expected, rtol=1e-4, atol=2e-6)


def test_the_spectrum_keeps_within_its_bounds_and_is_zero_for_equal_rows() -> None:
    P, Q = torch.randn(2, 20, 50_000, generator=torch.Generator().manual_seed(1)) * 3
    P[:, ::2] -= 1e4
    Q[:, 1::2] -= 1e4
    log_p, log_q = raw_log_probabilities(P), raw_log_probabilities(Q)

    values = spectrum(log_p, log_q)

    assert bool((values <= torch.tensor(list(LARGEST.values()))).all())
    assert spectrum(log_p, log_p).flatten().tolist() == pytest.approx([0.0] * 100, abs=1e-6)


def test_a_row_of_half_precision_is_compared_in_float32() -> None:
    P, Q = torch.tensor([[4.0, 1.0, 0.5]]), torch.tensor([[1.0, 4.0, 0.5]])

    value = WHOLE_ROW["js"](raw_log_probabilities(P.half()), raw_log_probabilities(Q.half()))

    assert value.dtype == torch.float32
    reference = WHOLE_ROW["js"](P.double().log_softmax(-1), Q.double().log_softmax(-1))
    assert value.item() == pytest.approx(reference.item(), abs=1e-6)


def test_top_k_form_keeps_the_targets_likeliest_and_pools_the_rest() -> None:
    P, Q = row(0.5, 0.3, 0.15, 0.05), row(0.1, 0.2, 0.3, 0.4)

    folded = measured(P, Q, Knob(divergence="tv", form="top-k", form_k=2))
    by_hand = (abs(0.5 - 0.1) + abs(0.3 - 0.2) + abs(0.2 - 0.7)) / 2

    assert folded == [pytest.approx(by_hand)]
    assert [r.exp().sum().item() for r in fold_top_k(P, Q, 2)] == pytest.approx([1, 1])


def test_top_k_form_is_chosen_by_the_target_and_not_by_the_draft() -> None:
    P, Q = row(0.9, 0.06, 0.04), row(0.1, 0.2, 0.7)

    folded = measured(P, Q, Knob(divergence="tv", form="top-k", form_k=1))

    assert folded == [pytest.approx(0.8)]


def test_top_k_form_takes_the_lowest_ids_among_equally_likely_tokens() -> None:
    P, Q = row(0.4, 0.2, 0.2, 0.2), row(0.1, 0.7, 0.1, 0.1)

    folded = measured(P, Q, Knob(divergence="tv", form="top-k", form_k=2))

    assert folded == [pytest.approx((0.3 + 0.5 + 0.2) / 2)]


@pytest.mark.parametrize("k", [4, 50])
def test_top_k_form_with_the_whole_vocabulary_is_the_full_form(k: int) -> None:
    P, Q = row(0.5, 0.3, 0.15, 0.05), row(0.1, 0.2, 0.3, 0.4)

    for name in WHOLE_ROW:
        folded = measured(P, Q, Knob(divergence=name, form="top-k", form_k=k))
        assert folded == [pytest.approx(WHOLE_ROW[name](P, Q).item())]


def test_top_k_form_never_exceeds_the_full_form() -> None:
    P, Q = torch.randn(2, 100, 12, generator=torch.Generator().manual_seed(3)) * 2
    log_p, log_q = raw_log_probabilities(P).double(), raw_log_probabilities(Q).double()

    for name in WHOLE_ROW:
        folded = measure(log_p, log_q, Knob(divergence=name, form="top-k", form_k=4), SOURCE)
        assert bool((folded <= WHOLE_ROW[name](log_p, log_q) + 1e-6).all()), name


def test_top_p_form_compares_both_rows_on_the_targets_nucleus() -> None:
    P, Q = row(0.5, 0.3, 0.15, 0.05), row(0.1, 0.2, 0.3, 0.4)

    restricted = measured(P, Q, Knob(divergence="tv", form="top-p", form_p=0.7))

    assert restricted == [pytest.approx(abs(0.5 / 0.8 - 0.1 / 0.3))]
    inside_p, inside_q = restrict_top_p(P, Q, 0.7)
    assert inside_p.exp()[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert inside_q.exp()[0].tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0])


@pytest.mark.parametrize("name", WHOLE_ROW)
def test_a_draft_with_nothing_in_the_targets_nucleus_is_as_far_as_can_be(name: str) -> None:
    P, Q = row(0.6, 0.4, 0.0, 0.0), row(0.0, 0.0, 0.5, 0.5)

    restricted = measured(P, Q, Knob(divergence=name, form="top-p", form_p=0.9))

    assert restricted == [LARGEST[name]]


def test_the_random_form_knows_nothing_of_the_rows_and_follows_the_seed() -> None:
    P = torch.randn(4_000, 5, generator=torch.Generator().manual_seed(4))
    log_p = raw_log_probabilities(P)
    knob = Knob(form="random")

    values = measure(log_p, log_p, knob, torch.Generator().manual_seed(5))
    again = measure(log_p, log_p, knob, torch.Generator().manual_seed(5))

    assert torch.equal(values, again)
    assert bool(((values >= 0) & (values < 1)).all())
    for quantile in (0.1, 0.5, 0.9):
        assert (values < quantile).float().mean().item() == pytest.approx(quantile, abs=0.03)


def test_an_unknown_form_or_divergence_is_an_error_and_never_another_one() -> None:
    P = row(0.5, 0.5)

    with pytest.raises(ValueError, match="top-q"):
        measured(P, P, Knob(form="top-q"))
    with pytest.raises(KeyError):
        measured(P, P, Knob(divergence="wasserstein"))
