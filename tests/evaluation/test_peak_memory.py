"""The peak is that of a stretch of work, not of the process's life."""

from __future__ import annotations

import sys

import pytest
import torch

from blockdraft.evaluation.memory import peak_bytes, reset_peak

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets its peak")
def test_the_peak_is_of_the_stretch() -> None:
    reset_peak(CPU)
    before = peak_bytes(CPU)
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    during = peak_bytes(CPU)
    del block
    assert during - before > 48 * 2**20
    reset_peak(CPU)
    assert peak_bytes(CPU) < during - 32 * 2**20
