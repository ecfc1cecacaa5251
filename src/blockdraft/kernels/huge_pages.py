"""Memory on huge pages: what is read whole every pass must not cost a table walk every 4 KiB."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

_HUGE_PAGE = 2 * 1024 * 1024


def huge_bytes(num_bytes: int) -> Tensor:
    """Zero bytes, a uint8 tensor [num_bytes] on huge pages where the system has them.

    The mapping lives as long as the tensor or a view of it does; memory is taken as it is touched.
    Raises: OSError or OverflowError if there is not that much address space.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):  # a system without such mappings
        return torch.zeros(num_bytes, dtype=torch.uint8)
    # Private: shared anonymous memory gets no huge pages on most systems.
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel that was built without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    offset = -memory.data_ptr() % _HUGE_PAGE
    return memory[offset : offset + num_bytes]


def huge_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros for a cache: on a CPU on huge pages, unless it would not fill one.

    Raises: RuntimeError if there is not that much memory.
    """
    num_bytes = prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < _HUGE_PAGE:
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        return huge_bytes(num_bytes).view(dtype).view(shape)
    except (OSError, OverflowError, ValueError) as error:
        raise RuntimeError(f"no {num_bytes} bytes: {error}") from error
