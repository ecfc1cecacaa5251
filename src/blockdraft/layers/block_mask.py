"""Which rows a drafted block sees: made once a pass for each kind of layer, not once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class BlockView:
    """Rows to read, and what of them each block row sees.

    Attributes:
        first, last: read rows first..last-1 of every slot.
        mask: 0 where seen, -inf where not; None when every block row sees all rows read.
    """

    first: int
    last: int
    mask: Float[Tensor, "b 1 t s"] | None


def block_view(
    anchors: Sequence[int],
    width: int,
    window: int | None,
    is_causal: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> BlockView:
    """Visibility of one block of `width` rows per sequence, its first row at `anchors[i]`.

    Row j stands at position a + j. It sees position k iff k < a + width (context and own block),
    and q_pos - k_pos < window; the block itself is seen backwards only if `is_causal`, else both
    ways, there too within the window (the z-lab rule).
    """
    last = max(anchors) + width
    first = 0 if window is None else max(0, min(anchors) - window + 1)
    is_level = min(anchors) + width == last
    if is_level and not is_causal and (window is None or last - first <= window):
        return BlockView(first, last, None)
    keys = torch.arange(first, last, device=device)
    starts = torch.tensor(anchors, device=device)[:, None, None]
    queries = starts + torch.arange(width, device=device)[:, None]
    ends = queries + 1 if is_causal else (starts + width).expand_as(queries)
    hidden = keys >= ends
    if window is not None:
        hidden |= queries - keys >= window
        if not is_causal:
            hidden |= keys - queries >= window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return BlockView(first, last, mask[:, None])
