"""The layers of a Llama-like model for one short text at a time.

transformers' own forward is made for every model and every batch, and at batch 1 spends as long
between the matrix products as in them. Here are the same layers with nothing else: queries, keys
and values are one product, as are both halves of the feed-forward network, and a step writes its
keys and values in place. What cannot be had so runs as transformers has it (`layers_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from fsd_chat.models.cached import alike
from fsd_chat.models.quantization import MakeProduct, Product

KINDS = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types whose layers are these."""
ROTATIONS = frozenset({"default", "linear", "llama3", "yarn"})
"""Position encodings whose frequencies do not depend on the length of the text."""
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TEXTS = 4
"""Tried out to see whether the layers here are a model's."""
ROOM = 512
"""Tokens that a cache has room for at first; it doubles when they are full."""

Norm = Callable[[Tensor], Tensor]
"""x [..., size] → x / √(mean x² + ε) · weight [..., size] (Zhang and Sennrich 2019)."""


@dataclass(frozen=True)
class Layer:
    attention_norm: Norm
    queries_keys_values: Product
    query_norm: Norm | None
    key_norm: Norm | None
    attention_out: Product
    feed_forward_norm: Norm
    gate_and_up: Product
    down: Product


@dataclass(frozen=True)
class Shape:
    heads: int
    key_heads: int
    head_size: int
    scaling: float


class Layers:
    """All of a model's layers, and the norm after the last."""

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: Norm,
        shape: Shape,
        rotation: Any,
        head: Product,
        dtype: torch.dtype,
    ) -> None:
        """rotation: transformers' module, of which the frequencies are used. dtype: of what the
        layers read and of the keys and values."""
        self.layers = tuple(layers)
        self.head = head
        self.shape = shape
        self._norm = norm
        self._dtype = dtype
        self._frequencies: Tensor = rotation.inv_freq.float()
        self._magnitude: float = rotation.attention_scaling

    def empty_cache(self) -> Cache:
        like = torch.empty(0, dtype=self._dtype, device=self._frequencies.device)
        return Cache(len(self.layers), self.shape, like, self._rotations)

    def _rotations(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines for the first `count` positions, as `_rotated` takes them."""
        position = torch.arange(count, device=self._frequencies.device, dtype=torch.float32)
        angles = position[:, None, None] * self._frequencies
        cos, sin = angles.cos() * self._magnitude, angles.sin() * self._magnitude
        pair = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return pair[0].to(self._dtype), pair[1].to(self._dtype)

    def run(
        self, embedded: Tensor, cache: Cache, start: int, levels: Sequence[int] = ()
    ) -> list[Tensor]:
        """embedded [n, hidden] of the tokens from `start` on, which the cache takes in; whatever it
        held there is gone → outputs [n, hidden], after the last norm; before them the hidden states
        that `levels` names, as transformers counts them: 0 is the embedding, the last the output
        itself."""
        stop, state = start + embedded.shape[0], embedded
        rotation = cache.make_room(start, stop)
        mask = _mask(start, stop, self.shape, state) if stop - start > 1 else None
        wanted: dict[int, Tensor] = {0: state}
        for number, layer in enumerate(self.layers):
            state = self._attend(layer, number, start, state, cache, rotation, mask)
            state = state + self._feed_forward(layer, state)
            if number + 1 in levels:
                wanted[number + 1] = state
        output = self._norm(state)
        wanted[len(self.layers)] = output
        return [*(wanted[level] for level in levels), output]

    def _attend(
        self,
        layer: Layer,
        number: int,
        start: int,
        state: Tensor,
        cache: Cache,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
    ) -> Tensor:
        shape, count = self.shape, state.shape[0]
        turned = shape.heads + shape.key_heads
        found = layer.queries_keys_values(layer.attention_norm(state))
        found = found.view(count, turned + shape.key_heads, shape.head_size)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = layer.query_norm(found[:, : shape.heads])
            keys = layer.key_norm(found[:, shape.heads : turned])
            both = torch.cat((queries, keys), dim=1)
        else:
            both = found[:, :turned]
        both = _rotated(both, *rotation).transpose(0, 1)
        new = both[shape.heads :], found[:, turned:].transpose(0, 1)
        keys, values = cache.add(number, start, *new)
        # Heads that share keys stand side by side, as queries at one position: nothing is repeated.
        queries = both[: shape.heads].reshape(1, shape.key_heads, -1, shape.head_size)
        seen = functional.scaled_dot_product_attention(
            queries, keys[None], values[None], attn_mask=mask, scale=shape.scaling
        )
        seen = seen.view(shape.heads, count, shape.head_size).transpose(0, 1)
        return state + layer.attention_out(seen.reshape(count, -1))

    def _feed_forward(self, layer: Layer, state: Tensor) -> Tensor:
        both = layer.gate_and_up(layer.feed_forward_norm(state))
        gate, up = both.chunk(2, dim=-1)
        return layer.down(functional.silu(gate).mul_(up))


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position encoding (Su et al. 2021), the halves of a head apart. heads [n, h, size];
    cos, sin [n, 1, size], the first half of sin negative."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, dims=-1), sin)


def _mask(start: int, stop: int, shape: Shape, like: Tensor) -> Tensor:
    """Added to the scores [heads that share keys · n, stop]: a token sees none after it."""
    columns = torch.arange(stop, device=like.device)
    unseen = columns > columns[start:, None]
    mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(unseen, -torch.inf).repeat(shape.heads // shape.key_heads, 1)


class Cache:
    """Keys and values of one text, in a buffer that is written in place. How much of it is good is
    for its user to know, so that going back costs nothing."""

    def __init__(
        self,
        layers: int,
        shape: Shape,
        like: Tensor,
        rotations: Callable[[int], tuple[Tensor, Tensor]],
    ) -> None:
        """like: of the dtype and on the device of the keys."""
        self._buffer = like.new_empty(2, layers, shape.key_heads, 0, shape.head_size)
        self._rotations = rotations
        self._turns = rotations(0)

    def make_room(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """For the tokens from `start` to `stop`; returns their rotations."""
        room = self._buffer.shape[3]
        if stop > room:
            room = max(ROOM, 2 * room, stop)
            grown = self._buffer.new_empty(*self._buffer.shape[:3], room, self._buffer.shape[4])
            grown[:, :, :, :start] = self._buffer[:, :, :, :start]
            self._buffer, self._turns = grown, self._rotations(room)
        cos, sin = self._turns
        return cos[start:stop], sin[start:stop]

    def add(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values [key heads, n, size] of the n tokens from `start` on → those of the text up
        to the last of them."""
        stop = start + keys.shape[1]
        all_keys, all_values = self._buffer[0, layer], self._buffer[1, layer]
        all_keys[:, start:stop] = keys
        all_values[:, start:stop] = values
        return all_keys[:, :stop], all_values[:, :stop]


def layers_of(
    model: PreTrainedModel, make: MakeProduct, head: Product | None = None
) -> Layers | None:
    """The layers of `model`, their products made by `make` with its weights; None for a model that
    is built otherwise. head: to be used instead of the model's own."""
    config = model.config.get_text_config()
    if not _is_known(config):
        return None
    inner: Any = model.base_model
    if any(type(part) is not nn.Linear for layer in inner.layers for part in _parts(layer)):
        # Quantised by somebody else, or with an adapter.
        return None
    attention = inner.layers[0].self_attn
    shape = Shape(
        config.num_attention_heads,
        config.num_key_value_heads,
        attention.head_dim,
        attention.scaling,
    )
    layers = [_layer(layer, make, config.rms_norm_eps) for layer in inner.layers]
    norm = rms_norm(inner.norm.weight.data, config.rms_norm_eps)
    if head is None:
        own: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        head = make(own.weight.data, own.bias)
    return Layers(layers, norm, shape, inner.rotary_emb, head, model.dtype)


def release(model: PreTrainedModel) -> None:
    """Give up the weights of `model` that its layers have made something else of."""
    inner: Any = model.base_model
    nothing = nn.Parameter(torch.empty(0), requires_grad=False)
    for part in (part for layer in inner.layers for part in _parts(layer)):
        part.register_parameter("weight", nothing)


@torch.inference_mode()
def agree(model: PreTrainedModel, layers: Layers) -> bool:
    """Whether `layers` say what `model` says, but for rounding: of a text read at once, and of its
    end read after its beginning.

    Of several texts one is enough: on words at random a model in half precision is sometimes thrown
    off by rounding alone, and layers that compute something else are wrong about all of them.
    """
    ids = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(ids // 10, ids, (TEXTS, 16), generator=generator).to(model.device)
    return any(_agree_on(model, layers, text) for text in texts)


def _agree_on(model: PreTrainedModel, layers: Layers, text: Tensor) -> bool:
    expected = model(input_ids=text[None]).logits[0]
    embed: Any = model.get_input_embeddings()
    cache = layers.empty_cache()
    pieces = [layers.run(embed(text[i:j]), cache, i)[-1] for i, j in ((0, 9), (9, 16))]
    return alike(expected, layers.head(torch.cat(pieces)))


def _is_known(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    window = getattr(config, "sliding_window", None)
    return (
        config.model_type in KINDS
        and config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in ROTATIONS
        and set(kinds) == {"full_attention"}
        and (window is None or not getattr(config, "use_sliding_window", True))
    )


def _parts(layer: Any) -> list[nn.Module]:
    places = (layer.self_attn, layer.mlp)
    return [getattr(place, name) for place in places for name in PARTS if hasattr(place, name)]


def rms_norm(weight: Tensor, epsilon: float) -> Norm:
    """The norm with `weight` [size], in the steps that are fast on its device."""
    if weight.device.type != "cpu":
        return lambda x: functional.rms_norm(x, weight.shape, weight, epsilon)
    # (x, -x) has no mean, and the variance that is the mean square of x. On a CPU, torch has a
    # kernel for the norm that takes the mean away, and several steps in place of the other.
    size, both = weight.shape[0], torch.cat((weight, weight))

    def normed(x: Tensor) -> Tensor:
        pair = torch.cat((x, -x), dim=-1)
        return functional.layer_norm(pair, both.shape, both, None, epsilon)[..., :size]

    return normed


def _layer(layer: Any, make: MakeProduct, epsilon: float) -> Layer:
    attention, network = layer.self_attn, layer.mlp
    query_norm, key_norm = (
        rms_norm(getattr(attention, name).weight.data, epsilon)
        if hasattr(attention, name)
        else None
        for name in ("q_norm", "k_norm")
    )

    def joined(*parts: nn.Linear) -> Product:
        return make(*_one_weight(parts))

    return Layer(
        attention_norm=rms_norm(layer.input_layernorm.weight.data, epsilon),
        queries_keys_values=joined(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=query_norm,
        key_norm=key_norm,
        attention_out=joined(attention.o_proj),
        feed_forward_norm=rms_norm(layer.post_attention_layernorm.weight.data, epsilon),
        gate_and_up=joined(network.gate_proj, network.up_proj),
        down=joined(network.down_proj),
    )


@torch.no_grad()
def _one_weight(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weights and biases below each other. The parts themselves become views of them, so that the
    model is whole as it was and nothing is held twice."""
    biases = [part.bias.data for part in parts if part.bias is not None]
    bias = torch.cat(biases) if len(biases) == len(parts) else None
    first = parts[0].weight.data
    rows, columns = sum(part.out_features for part in parts), first.shape[1]
    if not _below_each_other(parts):
        weight = torch.cat([part.weight.data for part in parts])
        ends = torch.tensor([0, *(part.out_features for part in parts)]).cumsum(0).tolist()
        for part, start, stop in zip(parts, ends, ends[1:], strict=False):
            part.weight.data = weight[start:stop]
        return weight, bias
    return first.as_strided((rows, columns), (columns, 1)), bias


def _below_each_other(parts: Sequence[nn.Linear]) -> bool:
    place = parts[0].weight.data_ptr()
    for part in parts:
        weight = part.weight.data
        whole = weight.untyped_storage().data_ptr() == parts[0].weight.untyped_storage().data_ptr()
        if not whole or weight.data_ptr() != place or not weight.is_contiguous():
            return False
        place += weight.numel() * weight.element_size()
    return True
