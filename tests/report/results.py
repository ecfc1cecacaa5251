"""Results made up for the tests of their page, with the keys that `evaluate` writes."""

from __future__ import annotations

import math
from typing import Any

TASKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt-bench")
METHODS = {"plain": 1.0, "ngram": 1.5, "dflash": 2.9, "dflash2": 3.6}
_WIDTH = 7


def made_up_result(
    tasks: tuple[str, ...] = TASKS,
    methods: dict[str, float] | None = None,
    concurrencies: tuple[int, ...] = (1, 4, 16),
    temperatures: tuple[float, ...] = (0.0, 1.0),
    shift: float = 1.0,
) -> dict[str, Any]:
    """Rows for every cell; figures follow from a method's acceptance length."""
    taus = METHODS if methods is None else methods
    rows = [
        _row(task, method, tau, concurrency, temperature, i, shift)
        for temperature in temperatures
        for concurrency in concurrencies
        for i, task in enumerate(tasks)
        for method, tau in taus.items()
    ]
    return {
        "provenance": {
            "time": "2026-01-02T03:04:05+00:00",
            "commit": "0" * 40,
            "machine": {"cpu": "A Processor", "threads": 2, "instructions": ["avx2"], "gpu": None},
            "target": {"name": "a made-up model", "fingerprint": "abc"},
            "dtype": "bfloat16",
            "kernels": "torch",
        },
        "settings": {"max_tokens": 256, "tasks": [{"name": task} for task in tasks]},
        "rows": rows,
    }


def _row(
    task: str, method: str, tau: float, concurrency: int, temperature: float, i: int, shift: float
) -> dict[str, Any]:
    is_plain = method == "plain"
    tau = 1.0 if is_plain else 1 + (tau - 1) * (1.15 - 0.13 * i) * (0.8 if temperature else 1)
    plain_ms = 11.7 + 0.9 * concurrency
    parts = {"draft": 0.0, "select": 0.0, "verify": plain_ms, "other": 0.2}
    if not is_plain:
        draft = 0.02 if method == "ngram" else 2.6 + 0.3 * concurrency
        verify = plain_ms * (1.05 + 0.12 * (concurrency - 1) ** 0.7)
        parts = {"draft": draft, "select": 0.25 if method == "dflash2" else 0.0, "verify": verify}
        parts["other"] = 0.4
    predicted = plain_ms * tau / sum(parts.values())
    gain = None if is_plain else predicted * (0.96 - 0.02 * (i % 2)) * shift
    rate = 1000 * concurrency / plain_ms * (gain or 1.0)
    row = {
        "task": task,
        "method": method,
        "concurrency": concurrency,
        "temperature": temperature,
        "num_prompts": 20,
        "num_answers": 20,
        "num_tokens": 5000,
        "num_errors": 0,
        "cycles": round(5000 / tau),
        "tau": tau,
        "tau_ci95": None if is_plain else [tau * 0.94, tau * 1.06],
        "tau_pooled": tau,
        "tokens_per_s": rate,
        "speedup": gain,
        "speedup_ci95": None if gain is None else [gain * 0.95, gain * 1.05],
        "decode_speedup": gain,
        "predicted_speedup": None if is_plain else predicted,
        "speedup_refused": None,
        "ms_per_cycle": parts,
        "ttft_ms": {"p50": 71.0, "p95": 87.0, "p99": 88.0},
        "itl_ms": {"p50": 11.0, "p95": 15.0, "p99": 19.0},
        "peak_memory_bytes": 2**30,
        "num_diverged": 0,
        "divergence_rate": None if temperature else 0.0,
        "accuracy": 0.42,
        "mean_longest_repeat": 6.5,
        "distinct_4grams": 0.93,
    }
    return row | ({} if is_plain else _positions(method, tau))


def _positions(method: str, tau: float) -> dict[str, Any]:
    start = 1 - 1 / tau
    conditional = [min(0.98, start + 0.08) * math.exp(-0.05 * j) for j in range(_WIDTH)]
    found: dict[str, Any] = {"conditional_acceptance_by_position": conditional}
    if method.startswith("dflash"):
        oracle = [min(0.99, 0.97 - 0.03 * j) for j in range(_WIDTH)]
        found |= {"recall_by_position": {"1": conditional, "16": oracle}}
        found |= {"oracle_tau": tau * 1.5, "top1_tau": tau * 0.85, "headroom_recovered": 0.4}
    return found
