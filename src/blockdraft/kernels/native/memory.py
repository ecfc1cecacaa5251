"""One block of memory on huge pages for all packed weights of a model."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from blockdraft.kernels.huge_pages import huge_bytes

_ALIGN = 64


class WeightArena:
    """Hands out tensors from one mapping, which lives as long as any of them does."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._used = 0
        self._memory = huge_bytes(num_bytes)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor, its start aligned to a cache line."""
        num_bytes = prod(shape) * dtype.itemsize
        piece = self._memory[self._used : self._used + num_bytes]
        assert piece.numel() == num_bytes, "arena too small: a bug in its size"
        self._used += aligned(num_bytes)
        return piece.view(dtype).view(shape)


def aligned(num_bytes: int) -> int:
    """Bytes that `WeightArena.take` uses for a tensor of `num_bytes`."""
    return -(-num_bytes // _ALIGN) * _ALIGN
