"""What this machine can do at most: bytes read and multiplications a second, on all threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from blockdraft.targets.base import Target

_READ_BYTES = 512 * 2**20
_SIDE = 1024  # of the square matrices: large enough for full speed, a few ms each
_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Measured limits; GB and GFLOP are 10^9. `weight_bytes`: read by one pass, None if unknown."""

    bandwidth_gb_s: float
    gflop_s: float
    weight_bytes: int | None
    num_parameters: int

    @property
    def read_ms(self) -> float | None:
        """The least time of a pass: reading the weights once."""
        return None if self.weight_bytes is None else self.weight_bytes / self.bandwidth_gb_s / 1e6

    def compute_ms(self, num_rows: int) -> float:
        """The least time of the products of so many rows; attention is left out."""
        return 2.0 * self.num_parameters * num_rows / self.gflop_s / 1e6

    @property
    def balance_rows(self) -> float | None:
        """Rows at which arithmetic takes as long as reading: beyond it rows cost time."""
        return None if self.read_ms is None else self.read_ms / self.compute_ms(1)


def measure_ceilings(target: Target) -> Ceilings:
    """Best of a few tries each: what others do on the machine meanwhile only slows them."""
    device, dtype = target.device, target.info.dtype
    data = torch.ones(_READ_BYTES // 4, device=device)
    a, b = (torch.ones(_SIDE, _SIDE, dtype=dtype, device=device) for _ in range(2))
    num_bytes: Callable[[], int] | None = getattr(target, "num_weight_bytes", None)
    return Ceilings(
        bandwidth_gb_s=data.nbytes / _best_s(data.sum, device) / 1e9,
        gflop_s=2.0 * _SIDE**3 / _best_s(lambda: a @ b, device) / 1e9,
        weight_bytes=None if num_bytes is None else num_bytes(),
        num_parameters=target.info.num_parameters,
    )


def _best_s(run: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_ROUNDS + 1):  # the first warms up, and is never the best
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
