"""The whole clock: every second of a run belongs to exactly one phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

PHASES = ("prefill", "draft", "select", "verify")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds between two moments. `other_s` is what no phase claims, so the parts add up."""

    prefill_s: float
    draft_s: float
    select_s: float
    verify_s: float
    other_s: float
    total_s: float

    @property
    def decode_s(self) -> float:
        """Everything but the prefill."""
        return self.total_s - self.prefill_s


class Clock:
    """Adds up the time spent in each phase. Phases do not nest."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._spent = dict.fromkeys(PHASES, 0.0)

    def now(self) -> float:
        """Seconds; on a GPU, after the work queued so far has ended."""
        if self._is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time inside to one phase."""
        start = self.now()
        try:
            yield
        finally:
            self._spent[name] += self.now() - start

    def mark(self) -> tuple[float, dict[str, float]]:
        """A moment, to measure from with `since`."""
        return self.now(), dict(self._spent)

    def since(self, mark: tuple[float, dict[str, float]]) -> Timing:
        """How the time since `mark` was spent."""
        start, before = mark
        total = self.now() - start
        spent = {name: self._spent[name] - before[name] for name in PHASES}
        return Timing(
            prefill_s=spent["prefill"],
            draft_s=spent["draft"],
            select_s=spent["select"],
            verify_s=spent["verify"],
            other_s=total - sum(spent.values()),
            total_s=total,
        )
