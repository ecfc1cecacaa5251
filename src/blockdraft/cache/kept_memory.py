"""Memory that outlives its cache: fresh pages would be zeroed by the system every time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from blockdraft.kernels.huge_pages import huge_zeros

#: Shape, dtype and device to the memory of a cache, as `huge_zeros` gives it.
TakeMemory = Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]

#: Smaller tensors come from the allocator, which keeps its memory itself.
_LEAST_BYTES = 2 * 1024 * 1024


class KeptMemory:
    """Lends memory to caches and lends it again once the last tensor over it is gone.

    What it lends holds whatever was there before, not numbers of any kind: only for caches whose
    readers touch no row that its own sequence has not written. Borrowers of the same time (two
    unfinished generators) get memory of their own; an abandoned one gives it back when it dies.

    Nothing here locks: a loan can end wherever the interpreter frees an object, also in the
    middle of these methods. Each step is one operation on a dict instead.

    Args:
        most_bytes: most memory that is kept for later; what was given back first goes first.
            A tensor of more than half of it (a cache has two) is not kept at all.
    """

    def __init__(self, most_bytes: int = 2**30) -> None:
        self.most_bytes = most_bytes
        self._kept: dict[int, Tensor] = {}  # by address, the oldest first

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of anything; on a CPU in kept memory where there is enough in one piece.

        Raises: RuntimeError if there is not that much memory.
        """
        num_bytes = prod(shape) * dtype.itemsize
        if device.type != "cpu" or num_bytes < _LEAST_BYTES:
            return huge_zeros(shape, dtype, device)
        memory = self._find(num_bytes)
        if memory is None:
            # All that is kept is too small, and must not stand beside what replaces it.
            self._kept.clear()
            if num_bytes > self.most_bytes // 2:
                return huge_zeros(shape, dtype, device)
            num_bytes_kept = min(_rounded(num_bytes), self.most_bytes // 2)
            memory = huge_zeros((num_bytes_kept,), torch.uint8, device)
        return self._lend(memory)[:num_bytes].view(dtype).view(shape)

    def num_bytes(self) -> int:
        """Memory kept and not lent, in bytes; resident is what caches touched of it."""
        return sum(memory.nbytes for memory in list(self._kept.values()))

    def _find(self, num_bytes: int) -> Tensor | None:
        """The smallest kept piece that is large enough, no longer kept."""
        for memory in sorted(self._kept.values(), key=lambda memory: memory.nbytes):
            is_enough = memory.nbytes >= num_bytes
            if is_enough and self._kept.pop(memory.data_ptr(), None) is not None:
                return memory
        return None

    def _lend(self, memory: Tensor) -> Tensor:
        """The same bytes as a tensor whose storage ends the loan when it is freed."""
        loan = memory.numpy()
        weakref.finalize(loan, self._take_back, memory).atexit = False
        return torch.from_numpy(loan)

    def _take_back(self, memory: Tensor) -> None:
        self._kept[memory.data_ptr()] = memory
        for oldest in list(self._kept):
            if self.num_bytes() <= self.most_bytes:
                break
            self._kept.pop(oldest, None)


def _rounded(num_bytes: int) -> int:
    """Up to an eighth more, so that a slightly longer text fits the next time."""
    step = max(_LEAST_BYTES, 1 << (num_bytes.bit_length() - 4))
    return -(-num_bytes // step) * step
