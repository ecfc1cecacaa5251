"""Keys and values of a target: preallocated once, one length per slot."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.cache.base import TargetCache
from blockdraft.cache.kept_memory import TakeMemory
from blockdraft.errors import CapacityError
from blockdraft.kernels.huge_pages import huge_zeros

#: Rows beyond max_len that a pass may touch: a block's padding rows, never more than this.
PADDING_ROWS = 64


class KVCache(TargetCache):
    """k and v, each [l, slots, s, g, d]. Rows at and beyond `lens[slot]` are garbage, but finite.

    Finite matters: masked rows are multiplied by zero, and zero times NaN is NaN.

    Args:
        take: where the memory comes from. That of a `KeptMemory` is not finite: only for passes
            that read no row but those that the sequence itself has written.
    Raises: CapacityError if there is not that much memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        max_len: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        round_to: int = 1,
        take: TakeMemory = huge_zeros,
    ) -> None:
        rows = -(-(max_len + PADDING_ROWS) // round_to) * round_to
        shape = (num_layers, num_slots, rows, num_kv_heads, head_dim)
        try:
            self.k = take(shape, dtype, device)
            self.v = take(shape, dtype, device)
        except RuntimeError as error:
            gib = 2 * dtype.itemsize * torch.Size(shape).numel() / 2**30
            raise CapacityError(
                f"a cache for {num_slots} sequences of {max_len} tokens needs {gib:.1f} GiB, more"
                " than there is; lower the batch size or the length"
            ) from error
        self.max_len = max_len
        self.lens = [0] * num_slots

    @property
    def num_rows(self) -> int:
        """Rows of each slot, padding included."""
        return self.k.shape[2]

    def write(
        self,
        layer: int,
        index: Tensor,
        k: Float[Tensor, "b t g d"],
        v: Float[Tensor, "b t g d"],
    ) -> None:
        """Write new rows at the flat positions `index` [b * t] (slot * num_rows + position)."""
        self.k[layer].flatten(0, 1).index_copy_(0, index, k.flatten(0, 1))
        self.v[layer].flatten(0, 1).index_copy_(0, index, v.flatten(0, 1))

    def crop(self, slot: int, length: int) -> None:
        assert 0 <= length <= self.lens[slot], (slot, length, self.lens[slot])
        self.lens[slot] = length

    def move(self, src: int, dst: int) -> None:
        length = self.lens[src]
        self.k[:, dst, :length] = self.k[:, src, :length]
        self.v[:, dst, :length] = self.v[:, src, :length]
        self.lens[dst], self.lens[src] = length, 0

    def clear_after(self, slot: int, length: int) -> None:
        self.crop(slot, length)
        self.k[:, slot, length:].zero_()
        self.v[:, slot, length:].zero_()

    def clear(self, slot: int) -> None:
        """Empty a slot that may hold non-finite rows."""
        self.k[:, slot].zero_()
        self.v[:, slot].zero_()
        self.lens[slot] = 0

    def num_bytes(self) -> int:
        return self.k.nbytes + self.v.nbytes
