"""Most memory in use during a stretch of work."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak(device: torch.device) -> None:
    """Begin a stretch. Where the system cannot forget its peak, that of the process stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR.write_text("5")  # resets the peak of resident memory (Linux, proc(5))
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Most memory since `reset_peak`: of the GPU, else resident memory of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
