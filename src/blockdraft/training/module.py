"""A DFlash-family drafter to train: its parameters are the tensors of a checkpoint, by name.

The same network as `drafters/backbone.py`, differentiable, over packed blocks of many samples.
Parameters are float32 masters; products run in `dtype`. Test: equal to the serving path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from blockdraft.data.collate import BlockBatch
from blockdraft.drafters.config import DFlashConfig
from blockdraft.drafters.tensors import check_tensors
from blockdraft.layers.block_layout import block_positions
from blockdraft.layers.rope import rope_tables
from blockdraft.training.attention import BlockAttention, Places
from blockdraft.training.mixing import mix_rows, rms_norm

#: Tensors of a checkpoint that are not trained.
BUFFERS = ("draft_vocab_ids",)


class Linear(nn.Linear):
    """A product in the dtype of its input; the weight stays a float32 master."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class BlockConvolution(nn.Module):
    """Two-tap dynamic convolutions around a sub-layer (see `layers/conv.py`)."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.taps, self.groups = (
            config.conv_kernel_size,
            config.hidden_size // config.conv_group_size,
        )
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, config.hidden_size))
        width = 2 * self.taps * self.groups
        self.kernel_projection = Linear(config.hidden_size, width, bias=False)

    def forward(self, rows: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Mixed input rows, and what mixes the sub-layer's output."""
        correction = self.kernel_projection(rows)
        correction = correction.view(*rows.shape[:-1], 2, self.taps, self.groups)
        before, after = self.base_kernel.to(rows.dtype)
        mixed = mix_rows(rows, correction[:, :, 0], before)
        return mixed, lambda out: mix_rows(out, correction[:, :, 1], after)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Attention(nn.Module):
    """Projections and per-head norms; what sees what is in `training/attention.py`."""

    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        width, d = config.hidden_size, config.head_dim
        bias = config.attention_bias
        self.q_proj = Linear(width, config.num_heads * d, bias=bias)
        self.k_proj = Linear(width, config.num_kv_heads * d, bias=bias)
        self.v_proj = Linear(width, config.num_kv_heads * d, bias=bias)
        self.o_proj = Linear(config.num_heads * d, width, bias=bias)
        self.q_norm = RMSNorm(d, config.norm_eps)
        self.k_norm = RMSNorm(d, config.norm_eps)
        self.head_dim = d
        self.attend = BlockAttention(config.windows[index], config.causal[index])

    def forward(self, rows: Tensor, context: Tensor, places: Places) -> Tensor:
        q = places.rotate_blocks(self.q_norm(self._heads(self.q_proj(rows))))
        k = places.rotate_blocks(self.k_norm(self._heads(self.k_proj(rows))))
        v = self._heads(self.v_proj(rows))
        context_k = places.rotate_context(self.k_norm(self._heads(self.k_proj(context))))
        context_v = self._heads(self.v_proj(context))
        out = self.attend(q, k, v, context_k, context_v, places)
        return self.o_proj(out.flatten(-2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


class DraftLayer(nn.Module):
    """Attention and MLP with residuals, each between convolutions in DFlash 2."""

    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.input_layernorm = RMSNorm(width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(width, config.norm_eps)
        self.self_attn = Attention(config, index)
        self.mlp = Mlp(width, config.intermediate_size)
        self.has_convs = config.has_selector
        if self.has_convs:
            self.attention_conv = BlockConvolution(config)
            self.mlp_conv = BlockConvolution(config)

    def forward(self, x: Tensor, context: Tensor, places: Places) -> Tensor:
        rows = self.input_layernorm(x)
        if not self.has_convs:
            x = x + self.self_attn(rows, context, places)
            out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
            return out
        rows, leave = self.attention_conv(rows)
        x = x + leave(self.self_attn(rows, context, places))
        rows, leave = self.mlp_conv(self.post_attention_layernorm(x))
        mixed: Tensor = x + leave(self.mlp(rows))
        return mixed


class Selector(nn.Module):
    """Codebooks and projection of the candidate selector."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank, subset = config.selector_rank, config.draft_vocab_size
        rows = subset or config.vocab_size
        self.predecessor_codebook = nn.Parameter(torch.zeros(rows + bool(subset), rank))
        self.successor_codebook = nn.Parameter(torch.zeros(rows, rank))
        self.hidden_projection = Linear(config.hidden_size, rank, bias=False)


class DrafterModule(nn.Module):
    """Packed blocks to final-normed rows.

    Args:
        config: the drafter.
        embedding: the target's embedding table [v, m], frozen and not a parameter.
        dtype: of the products and of the rows between them.
    """

    def __init__(
        self, config: DFlashConfig, embedding: Tensor, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self._embedding = embedding.detach()
        self.fc = Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        if config.has_selector:
            self.candidate_selector = Selector(config)
        self._tables: tuple[Tensor, Tensor] | None = None

    @classmethod
    def from_tensors(
        cls,
        config: DFlashConfig,
        tensors: Mapping[str, Tensor],
        embedding: Tensor,
        dtype: torch.dtype = torch.float32,
    ) -> DrafterModule:
        """With a checkpoint's weights. Raises: CheckpointError if they do not fit the config."""
        check_tensors(config, tensors)
        module = cls(config, embedding, dtype)
        trained = {k: v.float() for k, v in tensors.items() if k not in BUFFERS}
        module.load_state_dict(trained)
        return module

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The parameters by their checkpoint names, detached."""
        return {name: value.detach() for name, value in self.state_dict().items()}

    def forward(self, batch: BlockBatch) -> Float[Tensor, "n t m"]:
        """Final-normed rows of every block, row 0 included."""
        places = self._places(batch)
        context = self.hidden_norm(self.fc(batch.features.to(self.dtype)))
        x = self._rows(batch)
        for layer in self.layers:
            x = layer(x, context, places)
        out: Tensor = self.norm(x)
        return out

    def _rows(self, batch: BlockBatch) -> Tensor:
        ids = torch.full_like(batch.token_ids, self.config.mask_token_id)
        ids[:, 0] = batch.token_ids[:, 0]
        rows = self._embedding[ids].to(self.dtype)
        scale = self.config.input_embedding_scale
        return rows if scale == 1 else rows * scale

    def _places(self, batch: BlockBatch) -> Places:
        width = batch.token_ids.shape[1]
        cos, sin = self._rope(max(int(batch.anchors.max()) + width, max(batch.context_lens)))
        blocks = block_positions(batch.anchors, width)
        context = torch.cat([torch.arange(n, device=cos.device) for n in batch.context_lens])
        return Places(
            context_lens=batch.context_lens,
            block_counts=batch.block_counts,
            anchors=batch.anchors,
            block_rope=(cos[blocks][:, :, None], sin[blocks][:, :, None]),
            context_rope=(cos[context][:, None], sin[context][:, None]),
        )

    def _rope(self, num: int) -> tuple[Tensor, Tensor]:
        if self._tables is None or len(self._tables[0]) < num:
            config = self.config
            cos, sin = rope_tables(config.rope, config.head_dim, num, torch.float32)
            device = self._embedding.device
            self._tables = cos.to(device, self.dtype), sin.to(device, self.dtype)
        return self._tables
