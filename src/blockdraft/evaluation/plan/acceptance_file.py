"""Acceptance from the JSON of `blockdraft evaluate`: of all cycles, drafted or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError, ConfigError, UserError
from blockdraft.evaluation.plan.model import MeasuredAcceptance
from blockdraft.json_text import parse_json
from blockdraft.param_types import is_whole

#: Task, method and temperature of a row.
_Key = tuple[str, str, float]


def read_acceptances(
    path: Path, task: str | None = None, method: str | None = None
) -> list[MeasuredAcceptance]:
    """One for each row of the file that drafted; equal task, method and temperature once.

    Args:
        task, method: only rows of these; None takes all.
    Raises: CheckpointError if the file is no result, or none of its rows drafted; ConfigError if
        there is no such file, or no row of this task and method.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; give the JSON of `blockdraft evaluate --out`")
    found: dict[_Key, tuple[float, ...]] = {}
    rows, is_adaptive = _rows(path)
    # Under load drafts are cut: what was never drafted does not say that it would have failed.
    whole = [row for row in rows if not is_adaptive or row.get("concurrency", 1) == 1]
    if rows and not whole:
        raise CheckpointError(
            f"{path} has drafts that were fitted to several requests at once, which say too little;"
            " run evaluate with --concurrency 1 or --no-adaptive"
        )
    for row in whole:
        is_wanted = task in (None, row["task"]) and method in (None, row["method"])
        if is_wanted and (shares := _shares(row)):
            found.setdefault((row["task"], row["method"], row["temperature"]), shares)
    if not found:
        raise _no_row(path, task, method)
    return [MeasuredAcceptance(_label(key, found), shares) for key, shares in found.items()]


def _no_row(path: Path, task: str | None, method: str | None) -> UserError:
    """What to raise where no row is left: the choice of rows is to blame, if there was one."""
    asked = {"task": task, "method": method}
    given = " and ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    if not given:
        return CheckpointError(f"{path} has no row that drafted; run evaluate with a drafter")
    return ConfigError(
        f"{path} has no row that drafted with {given}; name another, or leave it out"
    )


def _label(key: _Key, every: Iterable[_Key]) -> str:
    """Short where that names one row, whole where two would look alike."""
    shown = [_short(each) for each in every]
    return _short(key) if shown.count(_short(key)) == 1 else ", ".join(map(str, key))


def _short(key: _Key) -> str:
    task, method, temperature = key
    return f"{task}, {Path(method).name}, T {temperature:g}"


def _shares(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Of all cycles, those whose draft at each position stood; a lookup drafts in some only."""
    drafted, accepted = row.get("drafted_by_position"), row.get("accepted_by_position")
    if not accepted or not drafted:
        return ()
    return tuple(a / row["cycles"] for a, d in zip(accepted, drafted, strict=True) if d)


def _is_row(row: Mapping[str, Any]) -> bool:
    """Whether a row has what is read of it, as `evaluate` writes it."""
    lists = [row.get(f"{name}_by_position") or [] for name in ("drafted", "accepted")]
    return (
        all(isinstance(row[key], str) for key in ("task", "method"))
        and isinstance(row["temperature"], int | float)
        and is_whole(row["cycles"])
        and all(is_whole(count) for counts in lists for count in counts)
        and (not all(lists) or (row["cycles"] > 0 and len(lists[0]) == len(lists[1])))
    )


def _rows(path: Path) -> tuple[list[Mapping[str, Any]], bool]:
    """The rows of a result, and whether drafts were fitted to the load."""
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
        rows = data["rows"]
        is_adaptive = bool(data.get("settings", {}).get("adaptive", False))
        if not isinstance(rows, list) or not all(map(_is_row, rows)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no result of `blockdraft evaluate --out`; give such a file"
        ) from error
    return rows, is_adaptive
