"""Where the rows of a block look: attention mass by layer, of a backbone that runs in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from blockdraft.kernels.base import GatedPair, Kernels, Linear

#: What a row can look at: itself, the anchor's row, other slots of its block, as many of the last
#: rows of the context as a block has, and the rest of the context.
PARTS = ("itself", "anchor", "slots", "recent", "older")


class AttentionWatch(Kernels):
    """Computes what `inner` does, and adds up where each row of a block looks.

    For blocks of one sequence: the block's rows are the last that are attended to.

    Attributes:
        mass: by layer, row of the block and part (`PARTS`), summed over blocks; heads count alike.
        num_blocks: blocks seen.
        context_len: rows of context seen, summed over blocks.
    """

    def __init__(self, inner: Kernels, num_layers: int, width: int) -> None:
        self.inner, self.name, self.dtype = inner, inner.name, inner.dtype
        self.mass: Float64[Tensor, "l t p"] = torch.zeros(
            num_layers, width, len(PARTS), dtype=torch.float64
        )
        self.context_len = 0
        self._num_calls = 0

    @property
    def num_blocks(self) -> int:
        return self._num_calls // len(self.mass)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return self.inner.linear(weight, bias)

    def gated_pair(self, gate: Tensor, up: Tensor, *biases: Any) -> GatedPair:
        return self.inner.gated_pair(gate, up, *biases)

    def attend(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b s g d"],
        v: Float[Tensor, "b s g d"],
        mask: Bool[Tensor, "b 1 t s"] | Float[Tensor, "b 1 t s"] | None,
        is_causal: bool = False,
    ) -> Float[Tensor, "b t hd"]:
        assert len(q) == 1, "one sequence at a time: blocks of others lie elsewhere"
        assert not is_causal, "what a block sees is told by its mask"
        p = attention(q, k, mask)[0].mean(0)
        layer = self._num_calls % len(self.mass)
        self.mass[layer] += by_part(p).double()
        self.context_len += (p.shape[1] - p.shape[0]) * (layer == 0)
        self._num_calls += 1
        return self.inner.attend(q, k, v, mask, is_causal)

    def figures(self) -> list[list[Mapping[str, float]]]:
        """Mean mass of each part, by layer and row; those of a row add up to 1."""
        means = (self.mass / max(self.num_blocks, 1)).tolist()
        return [[dict(zip(PARTS, row, strict=True)) for row in layer] for layer in means]


def attention(
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b s g d"],
    mask: Bool[Tensor, "b 1 t s"] | Float[Tensor, "b 1 t s"] | None,
) -> Float32[Tensor, "b h t s"]:
    """softmax(q k^T / sqrt(d) + mask) in float32."""
    keys = k.float().repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bthd,bshd->bhts", q.float(), keys) / q.shape[-1] ** 0.5
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask.float()
    return torch.softmax(scores, -1)


def by_part(p: Float[Tensor, "t s"]) -> Float[Tensor, "t p"]:
    """The mass of each row on every part; its block is the last t of the s rows it looks at."""
    t = len(p)
    block, context = p[:, -t:], p[:, :-t]
    itself = block.diagonal()
    anchor = block[:, 0].clone()
    anchor[0] = 0  # the anchor's own row: itself
    slots = block.sum(-1) - itself - anchor
    recent = context[:, -t:].sum(-1)
    return torch.stack([itself, anchor, slots, recent, context[:, :-t].sum(-1)], -1)
