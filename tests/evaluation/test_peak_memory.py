"""The peak is that of a stretch of work, not of the process's life."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: In a process of its own: what other tests give back meanwhile would hide the block.
_CODE = """
import torch
from blockdraft.evaluation.memory import peak_bytes, reset_peak
cpu = torch.device("cpu")
reset_peak(cpu)
before = peak_bytes(cpu)
block = torch.ones(64 * 2**20, dtype=torch.uint8)
during = peak_bytes(cpu)
del block
reset_peak(cpu)
print(before, during, peak_bytes(cpu))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets its peak")
def test_the_peak_is_of_the_stretch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, timeout=120
    )
    before, during, after = map(int, done.stdout.split())
    assert during - before > 48 * 2**20
    assert after < during - 32 * 2**20
