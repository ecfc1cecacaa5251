"""Alternating measurements: what is compared runs in turns, so that noise hits all alike."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def alternate(
    runs: Mapping[str, Callable[[], float]], rounds: int, warmup: int = 1
) -> dict[str, dict[str, float]]:
    """Run each in turn, `rounds` times; every run returns what it measured.

    Returns: median, least and greatest of each.
    """
    values: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(warmup + rounds):
        for name, run in runs.items():
            value = run()
            if i >= warmup:
                values[name].append(value)
        print(f"  round {i + 1} of {warmup + rounds}", file=sys.stderr, flush=True)
    return {name: summary(found) for name, found in values.items()}


def summary(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "num": len(values),
    }


def milliseconds(run: Callable[[], object], repeats: int = 5) -> Callable[[], float]:
    """A measurement: the median time of a few calls in a row, in ms."""

    def measure() -> float:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)

    return measure


def read_bandwidth_gb_s(size_mib: int = 1024) -> float:
    """Bytes a second that all threads together read from memory, in GB (10^9)."""
    data = torch.ones(size_mib * 2**20 // 4)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - start)
    return data.nbytes / min(times) / 1e9


def write_result(path: Path, provenance: Mapping[str, Any], settings: Any, rows: Any) -> None:
    """Write a result with where it comes from; the last line on stdout is the JSON."""
    result = {"provenance": dict(provenance), "settings": settings, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
