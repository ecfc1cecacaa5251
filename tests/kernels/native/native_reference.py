"""A plain float64 decoder that computes what the native pass computes, one row at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from blockdraft.kernels.native import ConvWeights, LayerWeights, ModelWeights, Span


def random_weights(
    *,
    num_layers: int = 2,
    width: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    ffn_width: int = 96,
    vocab_size: int = 61,
    positions: int = 400,
    qk_norm: bool = False,
    biases: bool = False,
    windows: Sequence[int | None] = (None,),
    causal: Sequence[bool] = (True,),
    conv_group: int | None = None,
    num_taps: int = 0,
    is_tied: bool = True,
    seed: int = 0,
) -> ModelWeights:
    """A random decoder whose weights are exact in bfloat16."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        scale = shape[-1] ** -0.5
        return (torch.randn(*shape, generator=generator) * scale).bfloat16().float()

    def norm(size: int) -> Tensor:
        return 1.0 + 0.2 * torch.randn(size, generator=generator)

    def bias(size: int) -> Tensor | None:
        return 0.3 * torch.randn(size, generator=generator) if biases else None

    def conv() -> ConvWeights | None:
        if conv_group is None:
            return None
        base = torch.randn(2, 2, width, generator=generator) * 0.3
        base[:, 0] += 1.0
        return ConvWeights(base=base, projection=0.5 * matrix(4 * width // conv_group, width))

    rows = (num_heads + 2 * num_kv_heads) * head_dim
    layers = [
        LayerWeights(
            attention_norm=norm(width),
            qkv=matrix(rows, width),
            output=matrix(width, num_heads * head_dim),
            mlp_norm=norm(width),
            gate_up=matrix(2 * ffn_width, width),
            down=matrix(width, ffn_width),
            qkv_bias=bias(rows),
            output_bias=bias(width),
            gate_up_bias=bias(2 * ffn_width),
            down_bias=bias(width),
            q_norm=norm(head_dim) if qk_norm else None,
            k_norm=norm(head_dim) if qk_norm else None,
            window=windows[i % len(windows)],
            is_causal=causal[i % len(causal)],
            attention_conv=conv(),
            mlp_conv=conv(),
        )
        for i in range(num_layers)
    ]
    frequencies = 1e4 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    angles = torch.arange(positions).double()[:, None] * frequencies
    return ModelWeights(
        layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        final_norm=norm(width),
        head=matrix(vocab_size, width),
        cosine=angles.cos().float(),
        sine=angles.sin().float(),
        norm_eps=1e-5,
        embedding=None if is_tied else matrix(vocab_size, width),
        feature=matrix(width, num_taps * width) if num_taps else None,
        feature_norm=norm(width) if num_taps else None,
    )


def empty_cache(weights: ModelWeights, slots: int = 3, max_len: int = 400) -> tuple[Tensor, Tensor]:
    """Caches full of noise: a kernel that reads a row it must not see is found out."""
    shape = (len(weights.layers), slots, max_len, weights.num_kv_heads, weights.head_dim)
    generator = torch.Generator().manual_seed(9)
    k, v = (5 * torch.randn(shape, generator=generator) for _ in range(2))
    return k.bfloat16(), v.bfloat16()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def rotate(x: Tensor, positions: Tensor, weights: ModelWeights) -> Tensor:
    """Half-split rotary of [n heads d]."""
    cosine = weights.cosine[positions].double()[:, None]
    sine = weights.sine[positions].double()[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


def convolve(x: Tensor, delta: Tensor, base: Tensor, side: int) -> Tensor:
    """Rows of one block; delta [n, 2 sides, 2 taps, groups]."""
    group = x.shape[1] // delta.shape[-1]
    taps = base.double()[side] + delta[:, side].repeat_interleave(group, dim=-1)
    previous = functional.pad(x, (0, 0, 1, 0))[:-1]
    return taps[:, 0] * x + taps[:, 1] * previous


@dataclasses.dataclass
class ReferenceOutput:
    logits: Tensor
    hidden: Tensor
    taps: list[Tensor]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x, weight.double(), None if bias is None else bias.double())


def _attend(
    layer: LayerWeights, weights: ModelWeights, q: Tensor, k: Tensor, v: Tensor, start: int
) -> Tensor:
    """q [n h d] at positions start.., k and v [end kv d] from position 0."""
    group = weights.num_heads // weights.num_kv_heads
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * weights.head_dim**-0.5
    distance = (start + torch.arange(len(q)))[:, None] - torch.arange(len(k))
    visible = distance >= 0 if layer.is_causal else torch.ones_like(distance, dtype=torch.bool)
    if layer.window is not None:
        visible &= distance.abs() < layer.window
    weights_ = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights_, v).flatten(1)


def _sublayer_input(x: Tensor, conv: ConvWeights | None) -> tuple[Tensor, Tensor | None]:
    if conv is None:
        return x, None
    delta = _linear(x, conv.projection, None).view(len(x), 2, 2, -1)
    return convolve(x, delta, conv.base, 0), delta


def _sublayer_output(x: Tensor, conv: ConvWeights | None, delta: Tensor | None) -> Tensor:
    return x if conv is None or delta is None else convolve(x, delta, conv.base, 1)


def heads_of(
    layer: LayerWeights, weights: ModelWeights, h: Tensor, positions: Tensor
) -> list[Tensor]:
    """Queries, keys and values [n heads d] of normed rows."""
    d, kv = weights.head_dim, weights.num_kv_heads
    qkv = _linear(h, layer.qkv, layer.qkv_bias).view(len(h), -1, d)
    q, k, v = qkv.split([weights.num_heads, kv, kv], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q = rms_norm(q, layer.q_norm, weights.norm_eps)
        k = rms_norm(k, layer.k_norm, weights.norm_eps)
    return [rotate(q, positions, weights), rotate(k, positions, weights), v]


class Reference:
    """Keeps keys and values of each slot in float64, layer by layer."""

    def __init__(self, weights: ModelWeights, slots: int = 3, max_len: int = 400) -> None:
        self.weights = weights
        shape = (len(weights.layers), slots, max_len, weights.num_kv_heads, weights.head_dim)
        self.k, self.v = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))

    def append_context(self, features: Tensor, span: Span) -> None:
        w = self.weights
        assert w.feature is not None
        assert w.feature_norm is not None
        h = rms_norm(_linear(features.double(), w.feature, None), w.feature_norm, w.norm_eps)
        positions = torch.arange(span.start, span.start + span.num_rows)
        for i, layer in enumerate(w.layers):
            _, k, v = heads_of(layer, w, h, positions)
            self.k[i, span.slot, positions], self.v[i, span.slot, positions] = k, v

    def forward(self, ids: Tensor, span: Span) -> ReferenceOutput:
        """Rows of one sequence. New keys and values are kept; a drafter's are overwritten."""
        w = self.weights
        table = w.head if w.embedding is None else w.embedding
        assert isinstance(table, Tensor)
        assert isinstance(w.head, Tensor)
        x = table[ids].double()
        positions = torch.arange(span.start, span.start + span.num_rows)
        end, taps = span.start + span.num_rows, []
        for i, layer in enumerate(w.layers):
            h = rms_norm(x, layer.attention_norm, w.norm_eps)
            h, delta = _sublayer_input(h, layer.attention_conv)
            q, k, v = heads_of(layer, w, h, positions)
            self.k[i, span.slot, positions], self.v[i, span.slot, positions] = k, v
            o = _attend(
                layer, w, q, self.k[i, span.slot, :end], self.v[i, span.slot, :end], span.start
            )
            o = _linear(o, layer.output, layer.output_bias)
            x = x + _sublayer_output(o, layer.attention_conv, delta)
            h = rms_norm(x, layer.mlp_norm, w.norm_eps)
            h, delta = _sublayer_input(h, layer.mlp_conv)
            gate, up = _linear(h, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            o = _linear(functional.silu(gate) * up, layer.down, layer.down_bias)
            x = x + _sublayer_output(o, layer.mlp_conv, delta)
            taps.append(x)
        hidden = rms_norm(x, w.final_norm, w.norm_eps)
        return ReferenceOutput(_linear(hidden, w.head, None), hidden, taps)


def relative_error(given: Tensor, expected: Tensor) -> float:
    return float((given.double() - expected).norm() / expected.norm())
