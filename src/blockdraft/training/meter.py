"""Figures of the steps between two log rows, over all processes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockdraft.training.parallel import World, sum_over_processes


@dataclass(frozen=True)
class StepTotals:
    """One step, all passes and processes together."""

    loss_sum: float
    weight_sum: float
    num_slots: int
    grad_norm: float


class Meter:
    """Sums of the steps since the last row.

    Metrics stay on the device until a row is made, and are summed over the processes then.
    """

    def __init__(self, world: World, first_step: int, max_steps: int) -> None:
        self._world, self._max_steps = world, max_steps
        self._first_step, self._start = first_step, time.perf_counter()
        self._clear()

    def metrics(self, sums: Mapping[str, Tensor]) -> None:
        """Add the metric sums of one pass."""
        for name, value in sums.items():
            value = value.detach().to(torch.float64)
            self._metrics[name] = self._metrics[name] + value if name in self._metrics else value

    def step(self, totals: StepTotals, seconds: float) -> None:
        """Add one step that took so long."""
        self._num_steps += 1
        self._loss += totals.loss_sum
        self._weight += totals.weight_sum
        self._slots += totals.num_slots
        self._norm += totals.grad_norm
        self._seconds += seconds

    def row(self, step: int, rates: Mapping[str, float]) -> dict[str, Any]:
        """The row after `step` updates; the sums start anew. Every process must ask."""
        elapsed = time.perf_counter() - self._start
        row: dict[str, Any] = {
            "step": step,
            "loss": self._loss / self._weight,
            "grad_norm": self._norm / self._num_steps,
            "learning_rate": dict(rates),
            "slots_per_s": self._slots / self._seconds,
            "elapsed_s": elapsed,
            "eta_s": elapsed / (step - self._first_step) * (self._max_steps - step),
            **means(self._sum_metrics()),
        }
        self._clear()
        return row

    def _clear(self) -> None:
        self._metrics: dict[str, Tensor] = {}
        self._num_steps = self._slots = 0
        self._loss = self._weight = self._norm = self._seconds = 0.0

    def _sum_metrics(self) -> dict[str, Tensor]:
        if not self._metrics:
            return {}
        names = sorted(self._metrics)
        parts = [self._metrics[name] for name in names]
        total = sum_over_processes(torch.cat([part.flatten() for part in parts]), self._world).cpu()
        sums = torch.split(total, [part.numel() for part in parts])
        return {n: s.view(p.shape) for n, s, p in zip(names, sums, parts, strict=True)}


def means(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """`name` over `name_count`: numbers, and lists by position; None where nothing was counted.

    A sum without a count stays the sum.
    """
    found: dict[str, Any] = {}
    for name, value in sums.items():
        if name.endswith("_count") and name.removesuffix("_count") in sums:
            continue
        count = sums.get(f"{name}_count")
        mean = value if count is None else value / count
        found[name] = _plain(mean.tolist())
    return found


def _plain(value: Any) -> Any:
    """NaN (0 / 0) is not JSON."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if value != value else value
