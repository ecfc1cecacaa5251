"""The table that `blockdraft evaluate` prints: a line for each row of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Heads of the table's columns and how each is filled.
_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "task": lambda row: str(row["task"]),
    "method": lambda row: Path(row["method"]).name,
    "at once": lambda row: str(row["concurrency"]),
    "T": lambda row: f"{row['temperature']:g}",
    "tau": lambda row: _shown(row["tau"]),
    "95 %": lambda row: "{:.2f}-{:.2f}".format(*row["tau_ci95"]) if row["tau_ci95"] else "-",
    "pooled": lambda row: _shown(row["tau_pooled"]),
    "tokens/s": lambda row: _shown(row["tokens_per_s"], ".1f"),
    "speed-up": lambda row: _shown(row["speedup"]),
    "median": lambda row: _shown(row["speedup_median"]),
    "decode": lambda row: _shown(row["decode_speedup"]),
    "predicted": lambda row: _shown(row["predicted_speedup"]),
    "accuracy": lambda row: _shown(row["accuracy"], ".1%"),
    "diverged": lambda row: _shown(row["divergence_rate"], ".1%"),
    "repeat": lambda row: _shown(row["mean_longest_repeat"], ".0f"),
    "4-grams": lambda row: _shown(row["distinct_4grams"]),
}


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The figures that are looked at first; the file has all of them."""
    lines = [list(_COLUMNS), *([fill(row) for fill in _COLUMNS.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _shown(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)
