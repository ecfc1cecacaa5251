"""Exact top-k and argmax over a vocabulary, in two stages; ties go to the lowest id.

A row of v values is cut into groups of neighbours. The k best values lie in the k groups with the
best maxima: each of those groups holds a value at least as good as any outside them. Groups are
contiguous and compared by (maximum, lowest position), so the same holds among equal values. One
cheap pass over the row, for the maxima, is then followed by exact selection among few candidates.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor
from torch.nn import functional

_GROUP_SIZES = (64, 8)  # the second for a large k, where k groups of 64 are most of the row
_FREE_BITS = 2**29 - 1
_BEYOND_FLOAT32 = 2.0**1000  # all its free bits are 0


def choose(logits: Float[Tensor, "*rows v"]) -> Int64[Tensor, "*rows"]:
    """The id of each row's greatest logit, the lowest id on ties: greedy, for plain and verify."""
    rows = logits.reshape(-1, logits.shape[-1])
    size = _GROUP_SIZES[0]
    groups = _grouped(rows, size)
    best = groups.amax(-1).argmax(-1)
    inner = groups[torch.arange(len(rows), device=rows.device), best].argmax(-1)
    return (best * size + inner).reshape(logits.shape[:-1])


def fast_topk(x: Float[Tensor, "n v"], k: int) -> tuple[Float[Tensor, "n k"], Int64[Tensor, "n k"]]:
    """The k greatest values of each row and their ids, greatest first, lowest id first on ties.

    Unlike `torch.topk` the result is a function of the values alone. NaN ranks above everything,
    so that it is seen by whoever looks at the first value.

    Raises: ValueError if k is not 1..v.
    """
    if not 1 <= k <= x.shape[-1]:
        raise ValueError(f"k is {k}; it must be 1 to the row length, {x.shape[-1]}")
    if x.dtype == torch.float64:  # a 64-bit value leaves no room for its position in a key
        values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    size = next((size for size in _GROUP_SIZES if 2 * k * size <= x.shape[-1]), None)
    ids = _top_positions(x.float(), k) if size is None else _grouped_topk(x.float(), k, size)
    return x.gather(-1, ids), ids


def _grouped_topk(x: Float32[Tensor, "n v"], k: int, size: int) -> Int64[Tensor, "n k"]:
    groups = _grouped(x, size)
    # Ascending, so that the order of positions among the candidates is the order of ids.
    best = _top_positions(groups.amax(-1), k).sort(-1).values
    candidates = groups.gather(1, best[..., None].expand(-1, -1, size)).flatten(1)
    positions = _top_positions(candidates, k)
    slots = positions // size
    return positions.add_((best.gather(-1, slots) - slots).mul_(size))


def _top_positions(x: Float32[Tensor, "n m"], k: int) -> Int64[Tensor, "n k"]:
    """Exact top-k of short rows: by value, then by earlier position.

    A float32 leaves the low 29 bits of a float64 free. A position written there makes values
    unique without changing their order.
    """
    keys = x.double()  # always a copy
    keys.add_(0.0).clamp_(-_BEYOND_FLOAT32, _BEYOND_FLOAT32)  # -0.0 becomes 0.0, inf finite
    bits = keys.view(torch.int64)
    ranks = torch.arange(x.shape[-1] - 1, -1, -1, device=x.device)
    # Among negative values the greater number is the one of smaller magnitude: ranks turn round.
    bits.bitwise_or_((bits >> 63).bitwise_and_(_FREE_BITS).bitwise_xor_(ranks))
    return keys.topk(k).indices


def _grouped(rows: Float[Tensor, "n v"], size: int) -> Float[Tensor, "n g s"]:
    """Rows cut into groups of `size`; -inf fills the last one and never wins (ties go low)."""
    padding = -rows.shape[-1] % size
    if padding:
        rows = functional.pad(rows, (0, padding), value=float("-inf"))
    return rows.reshape(len(rows), rows.shape[-1] // size, size)
