"""Weights of eight or four bits, for matrix products that read less memory.

At batch 1 a step costs about what reading the weights costs. torch has kernels for the CPU that
multiply with packed weights as they read them; activations stay as they were. A prompt has many
rows: there it pays to unpack a weight once and to multiply as always.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from fsd_chat.engine.messages import Quantization

Product = Callable[[Tensor], Tensor]
"""x [n, columns] → x · Wᵀ (+ b) [n, rows]."""
MakeProduct = Callable[[Tensor, Tensor | None], Product]
"""weight [rows, columns], bias [rows] or none → the product with them."""

GROUP = 32
"""Columns that share a scale and a zero in four bits, as in GGUF's Q4_1: a weight that comes from
such a file is found again as it was stored."""
ROWS = 16
"""The kernel for four bits takes rows by so many."""
LARGE = 2**14
"""Rows of a weight from which on it pays to prepare x for `WholeNumbers`, measured likewise."""
MANY = 48
"""Rows of x from which on unpacking the weight first is faster, measured with AVX-512."""


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    """The product with a weight as it is."""
    return lambda x: functional.linear(x, weight, bias)


def int8(weight: Tensor, bias: Tensor | None) -> Product:
    """With a weight of eight bits."""
    return EightBits(weight, bias)


def int4(weight: Tensor, bias: Tensor | None) -> Product:
    """With a weight of four bits where its shape allows that, and of eight elsewhere."""
    rows, columns = weight.shape
    fits = rows % ROWS == 0 and columns % (2 * GROUP) == 0
    return FourBits(weight, bias) if fits else EightBits(weight, bias)


def int8_head(weight: Tensor, bias: Tensor | None) -> Product:
    """With a weight of eight bits, in whole numbers where it has rows enough for that to pay."""
    whole = weight.shape[0] >= LARGE and whole_numbers_work()
    return WholeNumbers(weight, bias) if whole else EightBits(weight, bias)


LAYERS: dict[Quantization, MakeProduct] = {"none": plain, "int8": int8, "int4": int4}
HEADS: dict[Quantization, MakeProduct] = {"none": plain, "int8": int8_head, "int4": int8_head}
"""In four bits a head alone would cost most of the quality, and save a twentieth of the time."""


def _eight_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """q [rows, columns] in -127…127 and scale [rows] of w = scale · q."""
    exact = weight.float()
    scale = exact.abs().amax(dim=1).clamp_min(_SMALLEST) / 127
    return (exact / scale[:, None]).round_().to(torch.int8), scale


_SMALLEST = torch.finfo(torch.float32).tiny


class EightBits:
    """w = scale · q, q in -127…127, one scale a row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._q, scale = _eight_bits(weight)
        self._scale, self._bias = scale.to(weight.dtype), bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] >= MANY:
            return functional.linear(x, self._q.to(x.dtype) * self._scale[:, None], self._bias)
        product = torch._weight_int8pack_mm(x.contiguous(), self._q, self._scale)
        return product if self._bias is None else product + self._bias


class WholeNumbers:
    """The weights of `EightBits` in products of whole numbers, which processors do several times as
    fast: several rows of x then cost hardly more than one. Gives float32.

    A row of x becomes two of seven bits, its leading digits and the following ones: x = most / 63 ·
    (first + second / 126). That is more than bfloat16 holds, and so few bits that no processor
    overflows where it adds two products in sixteen bits.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        q, self._scale = _eight_bits(weight)
        self._packed = torch.ops.onednn.qlinear_prepack(q, None)
        self._zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        most = x.abs().amax(dim=-1, keepdim=True).float().clamp_min_(_SMALLEST)
        digits = x.new_empty(2, *x.shape, dtype=torch.float32)
        exact = torch.div(x, most / 63)
        torch.round(exact, out=digits[0])
        torch.sub(exact, digits[0], out=digits[1]).mul_(126).round_()
        whole = digits.add_(64).to(torch.uint8).view(2 * count, -1)
        found = torch.ops.onednn.qlinear_pointwise(
            *(whole, 1 / 63, 64, self._packed, self._scale, self._zeros, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        product: Tensor = torch.add(found[:count], found[count:], alpha=1 / 126).mul_(most)
        return product if self._bias is None else product.add_(self._bias)


@cache
def whole_numbers_work() -> bool:
    """Whether this build of torch has `WholeNumbers`' kernel, and it computes what it should: it is
    meant for the compiler, and not promised to anybody."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 32, generator=generator), torch.randn(3, 32, generator=generator)
    q, scale = _eight_bits(weight)
    expected = functional.linear(x, q * scale[:, None])
    try:
        found = WholeNumbers(weight, None)(x)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return found.shape == expected.shape and bool((found - expected).norm() < expected.norm() / 999)


class FourBits:
    """w = scale · (q - 8) + zero, q in 0…15, a scale and a zero for `GROUP` columns of a row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        rows, columns = weight.shape
        groups = weight.float().view(rows, columns // GROUP, GROUP)
        least, most = groups.amin(dim=-1), groups.amax(dim=-1)
        scale = (most - least) / 15
        whole = (groups - least[..., None]) / torch.where(scale > 0, scale, 1.0)[..., None]
        q = whole.round_().to(torch.uint8)
        self._packed = torch._convert_weight_to_int4pack_for_cpu(q.view(rows, columns).int(), 1)
        # bfloat16 is what the kernel is fast in.
        both = torch.stack((scale, least + 8 * scale), dim=-1).bfloat16()
        self._scale_and_zero = both.transpose(0, 1).contiguous()
        # The kernel's order is its own secret, so there is another copy for many rows of x, which
        # unpacks to Wᵀ: the second half of a group lies in the upper four bits.
        turned = q.permute(1, 2, 0)
        self._halves = (turned[:, : GROUP // 2] | (turned[:, GROUP // 2 :] << 4)).contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        narrow = x.bfloat16().contiguous()
        product: Tensor
        if x.shape[0] >= MANY:
            product = narrow @ self._unpacked()
        else:
            product = torch._weight_int4pack_mm_for_cpu(
                narrow, self._packed, GROUP, self._scale_and_zero
            )
        product = product.to(x.dtype)
        return product if self._bias is None else product + self._bias

    def _unpacked(self) -> Tensor:
        """Wᵀ [columns, rows]."""
        groups, half, rows = self._halves.shape
        scale, zero = self._scale_and_zero.movedim(-1, 0).contiguous().view(2, groups, 1, 1, rows)
        weight = scale.new_empty(groups, 2, half, rows)
        weight[:, 0] = self._halves & 15
        weight[:, 1] = self._halves >> 4
        weight.sub_(8).mul_(scale).add_(zero)
        unpacked: Tensor = weight.view(-1, rows)
        return unpacked


class QuantizedLinear(nn.Module):
    """Stands in for `nn.Linear` in a model whose layers are transformers' own."""

    def __init__(self, replaced: nn.Linear, make: MakeProduct) -> None:
        super().__init__()
        self.in_features, self.out_features = replaced.in_features, replaced.out_features
        bias = None if replaced.bias is None else replaced.bias.data
        self._product = make(replaced.weight.data, bias)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self._product(x.reshape(-1, self.in_features))
        return product.view(*x.shape[:-1], self.out_features)


def quantize_in_place(model: PreTrainedModel, quantization: Quantization) -> None:
    """Replace every linear layer of `model`, its head by the rule of heads."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    for module in list(model.modules()):
        for child, layer in list(module.named_children()):
            if type(layer) is nn.Linear:
                make = (HEADS if layer is head else LAYERS)[quantization]
                setattr(module, child, QuantizedLinear(layer, make))
