"""Our own decoder for the Llama / Mistral / Qwen2 / Qwen3 family, made for checking blocks.

A pass runs [b, t] new rows: all products see b * t rows at once, each sequence attends to its own
cached rows. Logits are made only for the rows asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.cache.base import TargetCache
from blockdraft.cache.target_kv import KVCache
from blockdraft.kernels.base import Kernels
from blockdraft.layers.rope import rope_tables
from blockdraft.layers.row_mask import RowView, causal_view
from blockdraft.targets.base import PassOutput, RowBatch, Target
from blockdraft.targets.config import DecoderConfig
from blockdraft.targets.decoder_weights import Layer, check_weights, pack_layer
from blockdraft.types import TargetInfo

#: Positions the rotary tables reach beyond the context: padding rows of the last block.
_SPARE_POSITIONS = 1024


@dataclass(frozen=True)
class _Rows:
    """What all layers of one pass share: where the new rows stand and what they see."""

    shape: tuple[int, int]
    slots: slice
    index: Tensor
    cos: Tensor
    sin: Tensor
    views: Mapping[int | None, RowView]


class DecoderTarget(Target):
    """A frozen Llama-type model. Weights are packed by `kernels` and may be freed afterwards.

    Raises: CheckpointError naming the tensors that are missing, unexpected or misshapen.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        kernels: Kernels,
        info: TargetInfo,
        device: torch.device,
    ) -> None:
        self.config, self.kernels, self.info, self.device = config, kernels, info, device
        check_weights(config, weights)

        def take(name: str) -> Tensor:
            return weights[name].to(device=device, dtype=kernels.dtype)

        self.embedding = take("model.embed_tokens.weight").contiguous()
        tied = config.tie_embeddings and "lm_head.weight" not in weights
        self._head = kernels.linear(self.embedding if tied else take("lm_head.weight"))
        self.final_norm = take("model.norm.weight")
        self.layers = [pack_layer(config, take, kernels, i) for i in range(config.num_layers)]
        self.cos, self.sin = (
            table.to(device)
            for table in rope_tables(
                config.rope,
                config.head_dim,
                config.max_context_len + _SPARE_POSITIONS,
                kernels.dtype,
            )
        )

    def new_cache(self, num_slots: int, max_len: int, round_to: int = 1) -> KVCache:
        return KVCache(
            self.config.num_layers,
            num_slots,
            max_len,
            self.config.num_kv_heads,
            self.config.head_dim,
            self.kernels.dtype,
            self.device,
            round_to,
        )

    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        return F.embedding(ids, self.embedding)

    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        return self._head(hidden)

    def head_rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e m"], Float[Tensor, "e"] | None]:
        return self._head.rows(ids)

    def num_weight_bytes(self) -> int:
        """Weight bytes that one pass reads: layers and head, not the embedding rows."""
        layers = sum(
            part.num_bytes()
            for layer in self.layers
            for part in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )
        return layers + self._head.num_bytes()

    @torch.inference_mode()
    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        assert isinstance(cache, KVCache)
        output = self.run(cache, batch, last=None)
        for i, length in enumerate(batch.lens):
            cache.lens[batch.first_slot + i] += length
        return output

    def run(self, cache: KVCache, batch: RowBatch, last: int | None) -> PassOutput:
        """One pass without advancing `cache.lens`; reads cache rows up to `last` (None: needed)."""
        b, t = batch.input_ids.shape
        rows = self._place_rows(cache, batch, last)
        x = self.embed(batch.input_ids.flatten())
        taps: dict[int, Tensor] = {}
        for i, layer in enumerate(self.layers):
            x = self._attention(layer, i, x, cache, rows)
            x = layer.down.add_to(x, layer.gate_up(self._norm(x, layer.mlp_norm)))
            if i in batch.layer_ids:
                taps[i] = x
        features = None
        if batch.layer_ids:
            features = torch.cat([taps[i] for i in batch.layer_ids], -1).view(b, t, -1)
        return PassOutput(self._logits(x.view(b, t, -1), batch), features)

    def _place_rows(self, cache: KVCache, batch: RowBatch, last: int | None) -> _Rows:
        b, t = batch.input_ids.shape
        starts = cache.lens[batch.first_slot : batch.first_slot + b]
        assert max(starts) + t <= cache.num_rows, (starts, t, cache.num_rows)
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(
            t, device=self.device
        )
        slots = torch.arange(batch.first_slot, batch.first_slot + b, device=self.device)
        flat = positions.flatten()
        windows = {layer.window for layer in self.layers}
        return _Rows(
            (b, t),
            slice(batch.first_slot, batch.first_slot + b),
            (slots[:, None] * cache.num_rows + positions).flatten(),
            self.cos[flat][:, None],
            self.sin[flat][:, None],
            {window: causal_view(starts, t, window, self.device, last) for window in windows},
        )

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, weight, self.config.norm_eps)

    def _attention(
        self, layer: Layer, index: int, x: Tensor, cache: KVCache, rows: _Rows
    ) -> Tensor:
        config, (b, t) = self.config, rows.shape
        num_q, num_qk = config.num_heads, config.num_heads + config.num_kv_heads
        heads = layer.qkv(self._norm(x, layer.input_norm)).view(b * t, -1, config.head_dim)
        qk = heads[:, :num_qk]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = self._norm(qk[:, :num_q], layer.q_norm)
            qk = torch.cat([q, self._norm(qk[:, num_q:], layer.k_norm)], 1)
        qk = torch.addcmul(qk * rows.cos, qk.roll(config.head_dim // 2, -1), rows.sin)
        qk = qk.view(b, t, num_qk, config.head_dim)
        v = heads[:, num_qk:].view(b, t, config.num_kv_heads, config.head_dim)
        cache.write(index, rows.index, qk[:, :, num_q:], v)
        view = rows.views[layer.window]
        out = self.kernels.attend(
            qk[:, :, :num_q],
            cache.k[index, rows.slots, view.first : view.last],
            cache.v[index, rows.slots, view.first : view.last],
            view.mask,
            view.is_causal,
        )
        return layer.out.add_to(x, out.view(b * t, -1))

    def _logits(self, x: Float[Tensor, "b t m"], batch: RowBatch) -> Tensor | None:
        if batch.logits_for == "none":
            return None
        if batch.logits_for == "last":
            ends = torch.tensor(batch.lens, device=self.device) - 1
            x = x[torch.arange(len(batch.lens), device=self.device), ends][:, None]
        logits = self.head(self._norm(x.flatten(0, 1), self.final_norm))
        return logits.view(x.shape[0], x.shape[1], -1)
