"""Attention of packed blocks: each block sees its sample's context before its anchor, and itself.

Two products (context and own block) share one softmax. No score between two blocks is ever
computed: a dense mask over all blocks of a sample would be mostly zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Context scores of one group of blocks in flight, in numbers; above it they are recomputed.
_MAX_SCORES = 1 << 24

Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Places:
    """Where everything of a batch stands (see `BlockBatch`), and its rotary tables."""

    context_lens: tuple[int, ...]
    block_counts: tuple[int, ...]
    anchors: Int64[Tensor, "n"]
    block_rope: Rope
    context_rope: Rope

    def rotate_blocks(self, x: Float[Tensor, "n t h d"]) -> Float[Tensor, "n t h d"]:
        return _rotate(x, *self.block_rope)

    def rotate_context(self, x: Float[Tensor, "s h d"]) -> Float[Tensor, "s h d"]:
        return _rotate(x, *self.context_rope)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


@dataclass(frozen=True)
class BlockAttention:
    """The visibility rule of one layer.

    Context position t is visible iff t < a, and a + k - t < window where there is one. Rows of
    the own block all see each other, or only backwards if causal; there too within the window.
    """

    window: int | None
    is_causal: bool

    def __call__(
        self,
        q: Float[Tensor, "n t h d"],
        k: Float[Tensor, "n t g d"],
        v: Float[Tensor, "n t g d"],
        context_k: Float[Tensor, "s g d"],
        context_v: Float[Tensor, "s g d"],
        places: Places,
    ) -> Float[Tensor, "n t h d"]:
        """Rows attend; one sample at a time, so memory is that of the longest sample."""
        counts, lens = list(places.block_counts), list(places.context_lens)
        parts = zip(
            *(torch.split(each, counts) for each in (q, k, v)),
            *(torch.split(each, lens) for each in (context_k, context_v)),
            torch.split(places.anchors, counts),
            strict=True,
        )
        return torch.cat([self._sample(*part) for part in parts])

    def _sample(
        self, q: Tensor, k: Tensor, v: Tensor, context_k: Tensor, context_v: Tensor, anchors: Tensor
    ) -> Tensor:
        """Blocks of one sample, in groups whose scores fit in memory."""
        n, t, h, _ = q.shape
        per_block = t * h * len(context_k)
        group = max(1, _MAX_SCORES // max(per_block, 1))
        if n <= group:
            return self._blocks(q, k, v, context_k, context_v, anchors)
        # Long sample: keep no scores between the passes.
        outs: list[Tensor] = []
        parts = (torch.split(each, group) for each in (q, k, v))
        for part in zip(*parts, strict=True):
            own = anchors[len(outs) * group :][: len(part[0])]
            outs.append(
                checkpoint(self._blocks, *part, context_k, context_v, own, use_reentrant=False)
            )
        return torch.cat(outs)

    def _blocks(
        self, q: Tensor, k: Tensor, v: Tensor, context_k: Tensor, context_v: Tensor, anchors: Tensor
    ) -> Tensor:
        n, t, h, d = q.shape
        s, g, _ = context_k.shape
        first, last = self._reach(anchors, s)
        context_k, context_v, s = context_k[first:last], context_v[first:last], last - first
        # Queries of one key head become rows of one product: [g, h/g * n * t, d].
        rows = (q * d**-0.5).view(n, t, g, h // g, d).permute(2, 3, 0, 1, 4)
        flat = rows.reshape(g, -1, d)
        to_context = (flat @ context_k.permute(1, 2, 0)).view(g, h // g, n, t, s)
        to_context = to_context + self._context_mask(anchors, t, first, s, q.dtype)
        own = rows.transpose(1, 2).reshape(g, n, -1, d)
        to_block = (own @ k.permute(2, 0, 3, 1)).view(g, n, h // g, t, t).transpose(1, 2)
        to_block = to_block + self._block_mask(t, q.dtype, q.device)
        weights = torch.cat([to_context, to_block], -1).softmax(-1, dtype=torch.float32)
        of_context, of_block = torch.split(weights.to(q.dtype), [s, t], -1)
        out = (of_context.reshape(g, -1, s) @ context_v.permute(1, 0, 2)).view(g, -1, n, t, d)
        of_block = of_block.transpose(1, 2).reshape(g, n, -1, t)
        mixed = (of_block @ v.permute(2, 0, 1, 3)).view(g, n, -1, t, d).transpose(1, 2)
        return (out + mixed).permute(2, 3, 0, 1, 4).reshape(n, t, h, d)

    def _reach(self, anchors: Tensor, num_rows: int) -> tuple[int, int]:
        """The context rows that some block sees."""
        if self.window is None:
            return 0, num_rows
        return max(0, int(anchors.min()) - self.window + 1), num_rows

    def _context_mask(
        self, anchors: Tensor, width: int, first: int, num: int, dtype: torch.dtype
    ) -> Tensor:
        """0 where seen, -inf where not: [n, 1 or width, s]."""
        keys = torch.arange(first, first + num, device=anchors.device)
        hidden = keys >= anchors[:, None, None]
        if self.window is not None:
            queries = anchors[:, None] + torch.arange(width, device=anchors.device)
            hidden = hidden | (queries[..., None] - keys >= self.window)
        zeros = torch.zeros(hidden.shape, dtype=dtype, device=anchors.device)
        return zeros.masked_fill_(hidden, -torch.inf)

    def _block_mask(self, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        rows = torch.arange(width, device=device)
        ahead = rows - rows[:, None]
        hidden = ahead > 0 if self.is_causal else torch.zeros_like(ahead, dtype=torch.bool)
        if self.window is not None:
            hidden = hidden | (ahead.abs() >= self.window)
        return torch.zeros(width, width, dtype=dtype, device=device).masked_fill_(
            hidden, -torch.inf
        )
