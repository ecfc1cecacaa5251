"""The DFlash backbone on the native kernels: context and block in one call each.

Equal to `backbone.Backbone` within bfloat16 rounding; head and embedding rows are the target's own
packed weights. The rows of a draft vocabulary are packed once more, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockdraft.cache.draft_context import Appended, KVDraftContext, valid_rows
from blockdraft.cache.kept_memory import KeptMemory
from blockdraft.drafters.config import DFlashConfig
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.kernels.native import (
    ConvWeights,
    LayerWeights,
    ModelWeights,
    NativePass,
    PackedLinear,
    PassResult,
    Span,
)
from blockdraft.layers.rope import rope_tables


class NativeBackbone:
    """Packed layers of one drafter, with a head. Holds no state of any sequence.

    `head` is the target's packed one, or its rows for a draft vocabulary.

    `num_positions` is as far as the target's texts and a block after them reach, whatever the
    drafter says of itself: it may draft badly out there, but never stops a generation.
    """

    def __init__(
        self,
        config: DFlashConfig,
        tensors: Mapping[str, Tensor],
        head: PackedLinear | GroupedWeight | Float[Tensor, "e m"],
        embedding: Float[Tensor, "v m"],
        num_positions: int,
    ) -> None:
        self.config, self.device = config, torch.device("cpu")
        # A native pass reads the rows before a block, which are without holes, and none behind.
        self.context_memory = KeptMemory()
        self.native_pass = NativePass(
            _model_weights(config, tensors, head, embedding, num_positions)
        )

    def new_context(self, num_slots: int, max_len: int, block_len: int) -> KVDraftContext:
        """An empty context, with room for blocks of `block_len` rows."""
        config = self.config
        return NativeDraftContext(
            self.native_pass,
            num_layers=config.num_layers,
            num_slots=num_slots,
            max_len=max_len,
            block_len=block_len,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=torch.bfloat16,
            device=self.device,
            take=self.context_memory.take,
        )

    def run(
        self,
        ids: Int64[Tensor, "b t"],
        context: KVDraftContext,
        anchors: Sequence[int],
        num_slots: int,
        num_candidates: int,
    ) -> PassResult:
        """One pass over a block per sequence; candidates and hidden rows of its first slots."""
        context.check_anchors(anchors)
        b, t = ids.shape
        rows = [i * t + 1 + j for i in range(b) for j in range(num_slots)]
        return self.native_pass.forward(
            context.k,
            context.v,
            ids.flatten(),
            [Span(i, anchor, t) for i, anchor in enumerate(anchors)],
            head_rows=rows,
            top_k=num_candidates,
            hidden=True,
        )


class NativeDraftContext(KVDraftContext):
    """A context whose rows are projected and written by one native call."""

    def __init__(self, native_pass: NativePass, **sizes: object) -> None:
        super().__init__(_no_projection, **sizes)  # type: ignore[arg-type]
        self._native_pass = native_pass

    def _write(self, parts: Sequence[Appended]) -> None:
        spans = [
            Span(part.first_slot + i, start, n)
            for part in parts
            for i, (start, n) in enumerate(zip(part.starts, part.lens, strict=True))
            if n
        ]
        self._native_pass.append_context(self._k, self._v, valid_rows(parts), spans)


def _no_projection(features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    raise AssertionError("native contexts project and write in one call")


def _model_weights(
    config: DFlashConfig,
    tensors: Mapping[str, Tensor],
    head: PackedLinear | GroupedWeight | Float[Tensor, "e m"],
    embedding: Float[Tensor, "v m"],
    num_positions: int,
) -> ModelWeights:
    half = config.head_dim // 2
    cos, sin = rope_tables(config.rope, config.head_dim, num_positions, torch.float32)
    return ModelWeights(
        layers=[_layer_weights(config, tensors, i) for i in range(config.num_layers)],
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        final_norm=tensors["norm.weight"],
        head=head,
        cosine=cos[:, :half],
        sine=sin[:, half:],  # the second half carries no sign
        norm_eps=config.norm_eps,
        embedding=embedding,
        embedding_scale=config.input_embedding_scale,
        feature=tensors["fc.weight"],
        feature_norm=tensors["hidden_norm.weight"],
    )


def _layer_weights(config: DFlashConfig, tensors: Mapping[str, Tensor], index: int) -> LayerWeights:
    def take(name: str) -> Tensor:
        return tensors[f"layers.{index}.{name}"]

    def bias(*parts: str) -> Tensor | None:
        names = [f"self_attn.{part}_proj.bias" for part in parts]
        return torch.cat([take(name) for name in names]) if config.attention_bias else None

    return LayerWeights(
        attention_norm=take("input_layernorm.weight"),
        qkv=torch.cat([take(f"self_attn.{part}_proj.weight") for part in "qkv"]),
        output=take("self_attn.o_proj.weight"),
        mlp_norm=take("post_attention_layernorm.weight"),
        gate_up=torch.cat([take("mlp.gate_proj.weight"), take("mlp.up_proj.weight")]),
        down=take("mlp.down_proj.weight"),
        qkv_bias=bias("q", "k", "v"),
        output_bias=bias("o"),
        q_norm=take("self_attn.q_norm.weight"),
        k_norm=take("self_attn.k_norm.weight"),
        window=config.windows[index],
        is_causal=config.causal[index],
        attention_conv=_conv(take, "attention_conv", config),
        mlp_conv=_conv(take, "mlp_conv", config),
    )


def _conv(take: Callable[[str], Tensor], name: str, config: DFlashConfig) -> ConvWeights | None:
    if not config.has_selector:
        return None
    return ConvWeights(
        base=take(f"{name}.base_kernel"), projection=take(f"{name}.kernel_projection.weight")
    )
