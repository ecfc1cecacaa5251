"""One block of memory on huge pages for all packed weights of a model."""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

_ALIGN = 64
_HUGE_PAGE = 2 * 1024 * 1024


class WeightArena:
    """Hands out tensors from one mapping, which lives as long as any of them does.

    A weight is read once a pass, so small pages cost a table walk every 4 KiB; huge pages are
    asked for where the system has them.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._used = 0
        # Private: shared anonymous memory gets no huge pages on most systems.
        mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        offset = -memory.data_ptr() % _HUGE_PAGE
        self._memory = memory[offset : offset + num_bytes]

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
