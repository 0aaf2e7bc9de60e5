"""Weights of few bits say nearly what the weights say, in every way they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families.tiny import CONTEXT, VOCABULARY, some_text, tiny
from torch import Tensor
from torch.nn import functional

from fsd_chat.models.cached import DynamicCachedModel
from fsd_chat.models.layers import layers_of, release
from fsd_chat.models.quantization import (
    GROUP,
    HEADS,
    LARGE,
    LAYERS,
    MANY,
    EightBits,
    FourBits,
    MakeProduct,
    QuantizedLinear,
    WholeNumbers,
    int4,
    int8,
    int8_head,
    quantize_in_place,
    whole_numbers_work,
)
from fsd_chat.models.static import StaticCachedModel

ROWS, COLUMNS = 48, 4 * GROUP
DTYPES = [torch.bfloat16, torch.float32]


def stored_in_four_bits() -> Tensor:
    """A weight as a GGUF file of Q4_1 has it: w = d·q + m for 32 columns, q in 0…15."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randint(0, 16, (ROWS, COLUMNS // GROUP, GROUP), generator=generator)
    # A block that is stored spans all sixteen levels.
    q[..., 0], q[..., 1] = 0, 15
    d = torch.rand(ROWS, COLUMNS // GROUP, 1, generator=generator) + 0.5
    m = -8 * d + torch.randn(d.shape, generator=generator)
    return (d * q + m).view(ROWS, COLUMNS)


def some_rows(count: int, columns: int = COLUMNS) -> Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, MANY - 1, MANY, 200])
@pytest.mark.parametrize(("make", "error"), [(int8, 0.012), (int4, 0.012)])
def test_a_weight_stored_in_four_bits_is_found_again(
    make: MakeProduct, error: float, count: int, dtype: torch.dtype
) -> None:
    weight, x = stored_in_four_bits(), some_rows(count)
    expected = functional.linear(x.bfloat16().float(), weight)
    found = make(weight.to(dtype), None)(x.to(dtype))
    assert (found.shape, found.dtype) == ((count, ROWS), dtype)
    assert float((found.float() - expected).norm() / expected.norm()) < error


@pytest.mark.parametrize(("make", "least", "most"), [(int8, 0.002, 0.012), (int4, 0.05, 0.1)])
def test_any_other_weight_loses_what_the_bits_cannot_hold(
    make: MakeProduct, least: float, most: float
) -> None:
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2)).bfloat16()
    x = some_rows(5).bfloat16()
    expected = functional.linear(x.float(), weight.float())
    lost = float((make(weight, None)(x).float() - expected).norm() / expected.norm())
    assert least < lost < most


@pytest.mark.parametrize("make", [int8, int4])
@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_apart(make: MakeProduct, count: int, dtype: torch.dtype) -> None:
    product, x = make(stored_in_four_bits().to(dtype), None), some_rows(count, 2 * COLUMNS)
    apart = x.to(dtype)[:, :COLUMNS]
    assert torch.equal(product(apart), product(apart.contiguous()))


@pytest.mark.parametrize("make", [int8, int4])
@pytest.mark.parametrize("count", [2, MANY])
def test_a_bias_is_added(make: MakeProduct, count: int) -> None:
    weight, x = stored_in_four_bits().bfloat16(), some_rows(count).bfloat16()
    bias = 100 * torch.arange(ROWS).bfloat16()
    torch.testing.assert_close(
        make(weight, bias)(x), make(weight, None)(x) + bias, rtol=0.01, atol=1
    )


def test_a_shape_that_the_kernel_does_not_take_gets_eight_bits() -> None:
    assert isinstance(int4(torch.ones(48, 64), None), FourBits)
    assert isinstance(int4(torch.ones(50, 64), None), EightBits)
    assert isinstance(int4(torch.ones(48, 48), None), EightBits)
    assert int4(torch.ones(50, 48), None)(torch.ones(1, 48)).tolist() == [[48.0] * 50]


@pytest.mark.parametrize("make", [int8, int4])
@pytest.mark.parametrize("value", [0.0, 2.5, -1.0])
def test_a_weight_that_is_the_same_everywhere_is_kept(make: MakeProduct, value: float) -> None:
    weight = torch.full((ROWS, COLUMNS), value).bfloat16()
    found = make(weight, None)(torch.ones(2, COLUMNS).bfloat16()).float()
    expected = torch.full((2, ROWS), value * COLUMNS)
    torch.testing.assert_close(found, expected, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_our_own_layers_and_transformers_say_the_same_with_the_same_bits(
    quantization: Any,
) -> None:
    model, text = tiny("llama", hidden_size=64, intermediate_size=128), some_text(40)
    own: Any = model.get_output_embeddings()
    layers = layers_of(model, LAYERS[quantization], HEADS[quantization](own.weight.data, None))
    assert layers is not None
    found = StaticCachedModel(model, layers, VOCABULARY, CONTEXT).forward(torch.tensor(text), 40)
    before = DynamicCachedModel(model, VOCABULARY, CONTEXT).forward(torch.tensor(text), 40)
    quantize_in_place(model, quantization)
    replaced = [one for one in model.modules() if isinstance(one, QuantizedLinear)]
    after = DynamicCachedModel(model, VOCABULARY, CONTEXT).forward(torch.tensor(text), 40)
    assert len(replaced) == 15
    torch.testing.assert_close(found, after, rtol=0.02, atol=0.02)
    assert not torch.equal(before, after)


def test_weights_that_are_released_take_no_memory_and_the_layers_still_speak() -> None:
    model, text = tiny("llama"), torch.tensor(some_text(20))
    layers = layers_of(model, int8)
    assert layers is not None
    reader = StaticCachedModel(model, layers, VOCABULARY, CONTEXT)
    expected = reader.forward(text, 20)
    reader.rollback(0)
    release(model)
    inner: Any = model.base_model
    kept = [one for one in inner.layers.parameters() if one.numel()]
    assert len(kept) == 2 * 2
    assert all(one.dim() == 1 for one in kept)
    assert torch.equal(reader.forward(text, 20), expected)


@pytest.mark.parametrize("count", [1, 2, 5, 200])
@pytest.mark.parametrize("dtype", DTYPES)
def test_whole_numbers_lose_less_than_half_precision_does(dtype: torch.dtype, count: int) -> None:
    """What is left is the rounding of the weight to eight bits, the same for both kinds."""
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(64, COLUMNS, generator=generator).to(dtype)
    bias = torch.randn(64, generator=generator).to(dtype)
    x = (some_rows(count) * torch.logspace(-3, 3, count)[:, None]).to(dtype)
    # An outlier takes most of the levels there are.
    x[:, 5] *= 40
    eight = EightBits(weight.float(), bias.float())(x.float())
    found = WholeNumbers(weight, bias)(x)
    assert (found.shape, found.dtype) == ((count, 64), torch.float32)
    apart = (found - eight).norm(dim=-1) / eight.norm(dim=-1)
    assert float(apart.max()) < (5e-4 if count == 1 else 1e-3)


def test_a_row_of_nothing_and_one_at_the_largest_are_multiplied_as_they_are() -> None:
    weight = torch.full((16, 64), 2.0)
    x = torch.stack([torch.zeros(64), torch.full((64,), -300.0), torch.full((64,), 1e-30)])
    found = WholeNumbers(weight, None)(x)
    assert torch.allclose(found[0], torch.zeros(16))
    assert torch.allclose(found[1], torch.full((16,), -300.0 * 128), rtol=1e-3)
    assert torch.allclose(found[2], torch.full((16,), 1e-30 * 128), rtol=1e-3)


def test_a_row_is_multiplied_alike_whatever_stands_beside_it() -> None:
    product, x = WholeNumbers(some_rows(32), None), some_rows(3)
    assert torch.equal(product(x)[:1], product(x[:1]))


def test_only_a_large_head_is_multiplied_in_whole_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = torch.zeros(LARGE, 64)
    assert isinstance(int8_head(head, None), WholeNumbers)
    assert isinstance(int8_head(head[:-1], None), EightBits)
    monkeypatch.setattr("fsd_chat.models.quantization.whole_numbers_work", lambda: False)
    assert isinstance(int8_head(head, None), EightBits)


def test_a_kernel_that_is_not_there_or_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert whole_numbers_work()
    for broken in (lambda self, x: x.new_zeros(3, 64), absent):
        monkeypatch.setattr(WholeNumbers, "__call__", broken)
        whole_numbers_work.cache_clear()
        assert not whole_numbers_work()
    monkeypatch.undo()
    whole_numbers_work.cache_clear()


def absent(self: object, x: Tensor) -> Tensor:
    raise AttributeError("no such kernel")
