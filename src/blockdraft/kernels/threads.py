"""PyTorch's threads, while another library's threads do the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_on_one_thread(is_wanted: bool) -> Iterator[None]:
    """Let PyTorch work on the calling thread only, if wanted; afterwards as before.

    PyTorch's other threads keep spinning for a while after each operation, on the cores that the
    native kernels' threads need: a pass then takes a third longer (`docs/log.md`).
    """
    num_threads = torch.get_num_threads()
    if not is_wanted or num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
