"""Acceptance by position from the JSON of `blockdraft evaluate`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.evaluation.plan.model import MeasuredAcceptance


def read_acceptances(
    path: Path, task: str | None = None, method: str | None = None
) -> list[MeasuredAcceptance]:
    """One for each row of the file that drafted; equal task, method and temperature once.

    Args:
        task, method: only rows of these; None takes all.
    Raises: CheckpointError if the file is no result; ConfigError if no row is left.
    """
    found: dict[str, MeasuredAcceptance] = {}
    for row in _rows(path):
        drafted, accepted = row.get("drafted_by_position"), row.get("accepted_by_position")
        is_wanted = task in (None, row.get("task")) and method in (None, row.get("method"))
        if not is_wanted or not accepted or not drafted:
            continue
        name = f"{row['task']}, {Path(row['method']).name}, T {row['temperature']:g}"
        shares = tuple(a / d for a, d in zip(accepted, drafted, strict=True) if d)
        found.setdefault(name, MeasuredAcceptance(name, shares))
    if not found:
        raise ConfigError(
            f"{path} has no row that drafted"
            + (f" with task {task}" if task else "")
            + (f" and method {method}" if method else "")
            + "; run evaluate with a drafter, or name another task or method"
        )
    return list(found.values())


def _rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = data["rows"]
        if not isinstance(rows, list) or not all("task" in row for row in rows):
            raise TypeError
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is no result of `blockdraft evaluate --out`; give such a file"
        ) from error
    return rows
