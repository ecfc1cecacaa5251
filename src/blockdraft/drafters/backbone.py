"""Backbone of the DFlash family: a few layers over a block, with target features as context.

Every layer attends from the block's rows to keys and values made from target features (injected,
with the layer's own projections) and to the block itself. Context rows pass through nothing else.

Source: DFlash (arXiv 2602.06036); with block convolutions, DFlash 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockdraft.cache.draft_context import KVDraftContext
from blockdraft.drafters.backbone_weights import Layer, pack_context, pack_layer
from blockdraft.drafters.config import DFlashConfig
from blockdraft.kernels.base import Kernels
from blockdraft.layers.block_mask import BlockView, block_view
from blockdraft.layers.conv import BlockConv, Taps, convolve
from blockdraft.layers.rope import rope_tables


@dataclass(frozen=True)
class _Blocks:
    """What all layers of one pass share: where the blocks stand and what they see."""

    shape: tuple[int, int]
    index: Tensor
    cos: Tensor
    sin: Tensor
    views: Mapping[tuple[int | None, bool], BlockView]


class Backbone:
    """Packed layers of one drafter. Holds no state of any sequence."""

    def __init__(
        self,
        config: DFlashConfig,
        tensors: Mapping[str, Tensor],
        kernels: Kernels,
        device: torch.device,
    ) -> None:
        self.config, self.kernels, self.device = config, kernels, device

        def take(name: str) -> Tensor:
            return tensors[name].to(device=device, dtype=kernels.dtype)

        self.context = pack_context(config, take, kernels)
        self.layers = [pack_layer(config, take, kernels, i) for i in range(config.num_layers)]
        self.final_norm = take("norm.weight")
        self._unit = torch.ones(config.head_dim, dtype=kernels.dtype, device=device)
        self._cos = self._sin = self._unit[:0].view(0, config.head_dim)

    def new_context(self, num_slots: int, max_len: int, block_len: int) -> KVDraftContext:
        """An empty context, with room for blocks of `block_len` rows."""
        self._reach(max_len + block_len)
        return KVDraftContext(
            self.inject,
            num_layers=self.config.num_layers,
            num_slots=num_slots,
            max_len=max_len,
            block_len=block_len,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            dtype=self.kernels.dtype,
            device=self.device,
        )

    def inject(
        self, features: Float[Tensor, "n f"], positions: Int64[Tensor, "n"]
    ) -> tuple[Float[Tensor, "l n g d"], Float[Tensor, "l n g d"]]:
        """Keys and values of every layer for target features at these positions."""
        config, weights = self.config, self.context
        rows = self._norm(weights.fc(features.to(self.kernels.dtype)), weights.norm)
        both = weights.keys_values(rows)
        shape = (len(rows), 2, config.num_layers, config.num_kv_heads, config.head_dim)
        k, v = both.view(shape).permute(1, 2, 0, 3, 4)
        scale = weights.k_scale[:, None]
        k = self._norm(k, self._unit) * scale
        return self._rotate(k, self._cos[positions][:, None], self._sin[positions][:, None]), v

    def run(
        self, rows: Float[Tensor, "b t m"], context: KVDraftContext, anchors: Sequence[int]
    ) -> Float[Tensor, "b t m"]:
        """One pass over a block per sequence, its first row at `anchors[i]`; final norm applied.

        The context is only read, but for its scratch rows.
        """
        blocks = self._place(context, anchors, rows.shape[1])
        x = rows.flatten(0, 1)
        for index, layer in enumerate(self.layers):
            x = self._attention(index, layer, x, context, blocks)
            x = self._mlp(layer, x, blocks)
        return self._norm(x, self.final_norm).view(rows.shape)

    def num_bytes(self) -> int:
        """Memory of the packed weights that a pass over a block reads, in bytes."""
        parts = [
            part
            for layer in self.layers
            for part in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        return sum(part.num_bytes() for part in parts)

    def _place(self, context: KVDraftContext, anchors: Sequence[int], width: int) -> _Blocks:
        index = context.block_index(anchors, width).flatten()
        positions = index % context.num_rows
        kinds = {(layer.window, layer.is_causal) for layer in self.layers}
        return _Blocks(
            (len(anchors), width),
            index,
            self._cos[positions][:, None],
            self._sin[positions][:, None],
            {
                kind: block_view(anchors, width, *kind, self.kernels.dtype, self.device)
                for kind in kinds
            },
        )

    def _attention(
        self, index: int, layer: Layer, x: Tensor, context: KVDraftContext, blocks: _Blocks
    ) -> Float[Tensor, "n m"]:
        config, (b, t) = self.config, blocks.shape
        num_q, num_qk = config.num_heads, config.num_heads + config.num_kv_heads
        rows, taps = _enter(layer.attention_conv, self._norm(x, layer.input_norm), blocks)
        heads = layer.qkv(rows).view(b * t, -1, config.head_dim)
        qk = self._norm(heads[:, :num_qk], self._unit) * layer.qk_scale
        qk = self._rotate(qk, blocks.cos, blocks.sin)
        context.write_block(index, blocks.index, qk[:, num_q:], heads[:, num_qk:])
        view = blocks.views[layer.window, layer.is_causal]
        out = self.kernels.attend(
            qk[:, :num_q].view(b, t, num_q, -1),
            context.k[index, :b, view.first : view.last],
            context.v[index, :b, view.first : view.last],
            view.mask,
        ).flatten(0, 1)
        return layer.out.add_to(x, out) if taps is None else x + _leave(taps, layer.out(out))

    def _mlp(self, layer: Layer, x: Tensor, blocks: _Blocks) -> Float[Tensor, "n m"]:
        rows, taps = _enter(layer.mlp_conv, self._norm(x, layer.mlp_norm), blocks)
        gated = layer.gate_up(rows)
        return layer.down.add_to(x, gated) if taps is None else x + _leave(taps, layer.down(gated))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, weight, self.config.norm_eps)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.addcmul(x * cos, x.roll(self.config.head_dim // 2, -1), sin)

    def _reach(self, num_positions: int) -> None:
        """Extend the rotary tables to this many positions."""
        if num_positions > len(self._cos):
            config, dtype = self.config, self.kernels.dtype
            tables = rope_tables(config.rope, config.head_dim, num_positions, dtype)
            self._cos, self._sin = (table.to(self.device) for table in tables)


def _enter(
    conv: BlockConv | None, rows: Tensor, blocks: _Blocks
) -> tuple[Float[Tensor, "n m"], Taps | None]:
    """Mix a sub-layer's input rows; the kernels for its output come along."""
    if conv is None:
        return rows, None
    mixed, taps = conv.enter(rows.view(*blocks.shape, -1))
    return mixed.flatten(0, 1), taps


def _leave(taps: Taps, rows: Tensor) -> Float[Tensor, "n m"]:
    return convolve(rows.view(taps[0].shape), taps).flatten(0, 1)
