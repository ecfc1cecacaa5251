"""What a decoder is to the native kernels: plain tensors in, packed weights and C structs out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.linear import (
    PackedLinear,
    Weight,
    check_weight_dtype,
    interleave_gate_up,
    packed_bytes,
)
from blockdraft.kernels.native.memory import WeightArena


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvWeights:
    """Two-tap dynamic convolution around a sub-layer (DFlash 2); sides are before and after it."""

    base: Float[Tensor, "2 2 m"]
    projection: Float[Tensor, "four_groups m"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerWeights:
    """One decoder layer; `h`, `kv` heads of width `d`, model width `m`, feed-forward width `f`.

    Matrices may be grouped integers, as a GGUF file holds them: the kernels then read those.

    Attributes:
        qkv: rows of the query heads, then the key heads, then the value heads.
        gate_up: rows of the gate, then of its input.
        q_norm, k_norm: RMS norm of each head before rotary (Qwen3), or None.
        window: a key is visible iff |q_pos - k_pos| < window; None for no limit.
        is_causal: else all rows of one call see each other (drafter blocks).
    """

    attention_norm: Float[Tensor, "m"]
    qkv: Float[Tensor, "qkv_rows m"] | GroupedWeight
    output: Float[Tensor, "m head_columns"] | GroupedWeight
    mlp_norm: Float[Tensor, "m"]
    gate_up: Float[Tensor, "gate_up_rows m"] | GroupedWeight
    down: Float[Tensor, "m f"] | GroupedWeight
    qkv_bias: Float[Tensor, "qkv_rows"] | None = None
    output_bias: Float[Tensor, "m"] | None = None
    gate_up_bias: Float[Tensor, "gate_up_rows"] | None = None
    down_bias: Float[Tensor, "m"] | None = None
    q_norm: Float[Tensor, "d"] | None = None
    k_norm: Float[Tensor, "d"] | None = None
    window: int | None = None
    is_causal: bool = True
    attention_conv: ConvWeights | None = None
    mlp_conv: ConvWeights | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelWeights:
    """A target, or a drafter if `feature` is given.

    Attributes:
        head: the output head, or one that another model has packed already (shared, not copied).
            That of a drafter may have other rows than the embedding.
        embedding: None if it is tied: rows are then read out of the packed head.
        cosine, sine: rotary tables (half-split rotary), any scaling included.
        feature: of a drafter, tapped features to model width; its new rows' keys and values are
            used in the pass and forgotten.
    """

    layers: Sequence[LayerWeights]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    final_norm: Float[Tensor, "m"]
    head: Float[Tensor, "e m"] | GroupedWeight | PackedLinear
    cosine: Float[Tensor, "positions half"]
    sine: Float[Tensor, "positions half"]
    norm_eps: float
    embedding: Float[Tensor, "v m"] | None = None
    softmax_scale: float | None = None
    embedding_scale: float = 1.0
    feature: Float[Tensor, "m tapped"] | None = None
    feature_norm: Float[Tensor, "m"] | None = None

    @property
    def width(self) -> int:
        return self.final_norm.shape[0]

    @property
    def vocab_size(self) -> int:
        """Tokens that may come in."""
        return self.num_logits if self.embedding is None else len(self.embedding)

    @property
    def num_logits(self) -> int:
        """Rows of the head."""
        head = self.head
        return head.num_outputs if isinstance(head, PackedLinear) else head.shape[0]


class PackedModel:
    """A model's packed weights and the C struct that points to them."""

    def __init__(self, weights: ModelWeights, isa: str, dtype: torch.dtype) -> None:
        _check(weights)
        check_weight_dtype(dtype)
        self.isa, self.dtype = isa, dtype
        self.head = weights.head if isinstance(weights.head, PackedLinear) else None
        self._kept: list[Tensor | PackedLinear] = []
        self._arena = WeightArena(sum(packed_bytes(w, dtype) for w in _matrices(weights)))
        self._layers = (structs.LayerStruct * max(1, len(weights.layers)))()
        for struct, layer in zip(self._layers, weights.layers, strict=False):
            self._fill_layer(struct, layer)
        if self.head is None:
            assert not isinstance(weights.head, PackedLinear)
            self.head = self._pack(weights.head)
        self.struct = self._fill_model(weights)

    @property
    def weight_formats(self) -> tuple[str, ...]:
        """Formats that the matrices of this model are packed in, each once."""
        kinds = {k.struct.kind for k in self._kept if isinstance(k, PackedLinear)}
        return tuple(structs.WEIGHT_FORMATS[kind] for kind in sorted(kinds))

    def num_bytes(self) -> int:
        """Memory of the weights this model holds itself (a shared head is not counted)."""
        own = sum(k.nbytes for k in self._kept if isinstance(k, Tensor))
        vectors = sum(
            k.num_bytes() - k.packed.nbytes for k in self._kept if isinstance(k, PackedLinear)
        )
        return self._arena.num_bytes + own + vectors

    def _pack(self, weight: Weight, bias: Tensor | None = None) -> PackedLinear:
        packed = PackedLinear(weight, bias, self._arena, self.dtype)
        self._kept.append(packed)
        return packed

    def _float(self, tensor: Tensor | None) -> int | None:
        """Address of a float32 copy that lives as long as the model."""
        if tensor is None:
            return None
        copy = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        self._kept.append(copy)
        return copy.data_ptr()

    def _fill_layer(self, struct: structs.LayerStruct, layer: LayerWeights) -> None:
        struct.attention_norm = self._float(layer.attention_norm)
        struct.mlp_norm = self._float(layer.mlp_norm)
        struct.q_norm = self._float(layer.q_norm)
        struct.k_norm = self._float(layer.k_norm)
        struct.qkv = self._pack(layer.qkv, layer.qkv_bias).struct
        struct.output = self._pack(layer.output, layer.output_bias).struct
        gate_up_bias = layer.gate_up_bias
        if gate_up_bias is not None:
            gate_up_bias = interleave_gate_up(gate_up_bias[:, None]).squeeze(1)
        gate_up = interleave_gate_up(layer.gate_up)
        struct.gate_up = self._pack(gate_up, gate_up_bias).struct
        struct.down = self._pack(layer.down, layer.down_bias).struct
        struct.window = layer.window or 0
        struct.is_causal = layer.is_causal
        for name in ("attention_conv", "mlp_conv"):
            conv: ConvWeights | None = getattr(layer, name)
            if conv is not None:
                projection = self._pack(conv.projection).struct
                setattr(struct, name, structs.ConvStruct(self._float(conv.base), projection))

    def _fill_model(self, weights: ModelWeights) -> structs.ModelStruct:
        assert self.head is not None
        struct = structs.ModelStruct(
            num_layers=len(weights.layers),
            width=weights.width,
            num_heads=weights.num_heads,
            num_kv_heads=weights.num_kv_heads,
            head_dim=weights.head_dim,
            ffn_width=weights.layers[0].down.shape[1] if weights.layers else 0,
            vocab_size=weights.vocab_size,
            conv_group=_conv_group(weights),
            num_positions=weights.cosine.shape[0],
            keeps_rows=weights.feature is None,
            isa=structs.ISAS.index(self.isa),
            norm_eps=weights.norm_eps,
            softmax_scale=weights.softmax_scale or weights.head_dim**-0.5,
            embedding_scale=weights.embedding_scale,
            layers=self._layers,
            embedding=self._embedding(weights),
            final_norm=self._float(weights.final_norm),
            cosine=self._float(weights.cosine),
            sine=self._float(weights.sine),
            head=self.head.struct,
            feature_norm=self._float(weights.feature_norm),
        )
        if weights.feature is not None:
            struct.feature = self._pack(weights.feature).struct
        return struct

    def _embedding(self, weights: ModelWeights) -> int | None:
        table = weights.embedding
        if table is None and isinstance(weights.head, GroupedWeight):
            table = weights.head.dequantise()  # rows of groups lie in too many pieces to be read
        elif table is None and self.head is not None and self.head.is_grouped:
            table = self.head.rows(torch.arange(self.head.num_outputs))
        if table is None:
            return None
        table = table.detach().to("cpu", torch.bfloat16).contiguous()
        self._kept.append(table)
        return table.data_ptr()


def _matrices(weights: ModelWeights) -> Iterator[Weight]:
    """Every matrix that will be packed, with the shape it is packed in."""
    for layer in weights.layers:
        yield from (layer.qkv, layer.output, interleave_gate_up(layer.gate_up), layer.down)
        for conv in (layer.attention_conv, layer.mlp_conv):
            if conv is not None:
                yield conv.projection
    if not isinstance(weights.head, PackedLinear):
        yield weights.head
    if weights.feature is not None:
        yield weights.feature


def _conv_group(weights: ModelWeights) -> int:
    for layer in weights.layers:
        if layer.attention_conv is not None:
            return 4 * weights.width // layer.attention_conv.projection.shape[0]
    return 1


def _check(weights: ModelWeights) -> None:
    """Raises: ConfigError for a tensor of the wrong shape, UnsupportedError for a head width."""
    m, heads, kv, d = weights.width, weights.num_heads, weights.num_kv_heads, weights.head_dim
    if kv < 1 or heads % kv:
        raise ConfigError(f"{heads} heads cannot share {kv} kv heads; give a divisor")
    if d % 8 or not 8 <= d <= structs.MAX_HEAD_DIM:
        raise UnsupportedError(
            f"head width {d} has no native kernel; it must be a multiple of 8, 8 to "
            f"{structs.MAX_HEAD_DIM}: use the torch kernels"
        )
    for index, layer in enumerate(weights.layers):
        f = layer.down.shape[1]
        _check_shapes(
            f"layers[{index}].",
            layer,
            attention_norm=(m,),
            mlp_norm=(m,),
            qkv=((heads + 2 * kv) * d, m),
            output=(m, heads * d),
            gate_up=(2 * f, m),
            down=(m, weights.layers[0].down.shape[1]),
            q_norm=(d,),
            k_norm=(d,),
            qkv_bias=((heads + 2 * kv) * d,),
            output_bias=(m,),
            gate_up_bias=(2 * f,),
            down_bias=(m,),
        )
        if layer.window is not None and layer.window < 1:
            raise ConfigError(f"layers[{index}].window is {layer.window}; give 1 or more, or None")
    _check_ends(weights)
    _check_convs(weights)


def _check_ends(weights: ModelWeights) -> None:
    m, positions = weights.width, weights.cosine.shape[0]
    _check_shapes(
        "",
        weights,
        embedding=(weights.vocab_size, m),
        cosine=(positions, weights.head_dim // 2),
        sine=(positions, weights.head_dim // 2),
        feature_norm=(m,),
    )
    if weights.feature is None and weights.num_logits != weights.vocab_size:
        raise ConfigError(
            f"head has {weights.num_logits} rows, embedding {weights.vocab_size}; a target has one"
            " vocabulary"
        )
    head = weights.head
    head_width = head.num_inputs if isinstance(head, PackedLinear) else head.shape[1]
    if head_width != m:
        raise ConfigError(f"head takes {head_width} inputs; the model is {m} wide")
    if (weights.feature is None) != (weights.feature_norm is None):
        raise ConfigError("feature and feature_norm belong together; give both or neither")
    if weights.feature is not None and weights.feature.shape[0] != m:
        raise ConfigError(f"feature has {weights.feature.shape[0]} outputs; the model is {m} wide")


def _check_convs(weights: ModelWeights) -> None:
    m, sizes = weights.width, set[int]()
    convs = [conv for layer in weights.layers for conv in (layer.attention_conv, layer.mlp_conv)]
    for conv in convs:
        sizes.add(0 if conv is None else conv.projection.shape[0])
        if conv is not None:
            _check_shapes("conv.", conv, base=(2, 2, m), projection=(len(conv.projection), m))
    if len(sizes) > 1:
        raise ConfigError("convolutions differ between layers; give all of them one group width")
    for size in sizes - {0}:
        if size % 4 or m % (size // 4):
            raise ConfigError(
                f"conv.projection has {size} rows; give 4 * groups, groups dividing {m}"
            )


def _check_shapes(prefix: str, owner: object, **shapes: tuple[int, ...]) -> None:
    for name, shape in shapes.items():
        tensor: Weight | None = getattr(owner, name)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{prefix}{name} has shape {list(tensor.shape)}; this model needs {list(shape)}"
            )
