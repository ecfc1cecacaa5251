"""Which cached rows the new rows of each sequence see: made once a pass, not once a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True)
class RowView:
    """The slice of cached rows to read, and what of it each new row sees.

    Attributes:
        first, last: read cache rows first..last-1 of every slot.
        mask: visibility [b, 1, t, last-first]; None when `is_causal` or "everything" says it.
        is_causal: the new rows are the only rows, and each sees those before it and itself.
    """

    first: int
    last: int
    mask: Bool[Tensor, "b 1 t s"] | None
    is_causal: bool


def causal_view(
    starts: Sequence[int],
    num_rows: int,
    window: int | None,
    device: torch.device,
    last: int | None = None,
) -> RowView:
    """Causal visibility of `num_rows` new rows after `starts[i]` cached rows of each sequence.

    Args:
        starts: cached rows of each sequence; new row j stands at position starts[i] + j.
        num_rows: new rows t of each sequence, padding included.
        window: a row sees position k iff q_pos - k_pos < window; None sees all before it.
        last: read up to this cache row (for kernels of one shape); None reads what is needed.
    """
    end = max(starts) + num_rows
    first = 0 if window is None or last is not None else max(0, min(starts) + 1 - window)
    fits_window = window is None or end <= window
    if last is None and len(starts) == 1 and fits_window:
        if num_rows == 1:
            return RowView(0, end, None, False)
        if starts[0] == 0:
            return RowView(0, end, None, True)
    last = end if last is None else last
    keys = torch.arange(first, last, device=device)
    queries = torch.tensor(starts, device=device)[:, None] + torch.arange(num_rows, device=device)
    mask = keys <= queries[..., None]
    if window is not None:
        mask &= queries[..., None] - keys < window
    return RowView(first, last, mask[:, None], False)
