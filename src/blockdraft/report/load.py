"""Result files of `evaluate` and traces, checked as far as a page relies on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.json_text import parse_json
from blockdraft.report.row_faults import is_table_of_facts, row_fault

TRACE_KIND, TRACE_VERSION = "blockdraft-trace", 1
_TRACE_KEYS = ("prompt", "text", "params", "method", "first", "cycles", "tokens", "provenance")

#: One row of a result.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One result file. `name` tells it from the others of a page."""

    name: str
    rows: Sequence[Row]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read result files; each is named by its file, with folders where files have one name.

    Raises: ConfigError for none or one given twice; CheckpointError for a file that is no result.
    """
    if not paths:
        raise ConfigError("no result was given; give one or several JSON files of `evaluate`")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("a result file is given twice; give each once")
    stems = [path.stem for path in paths]
    is_clear = len(set(stems)) == len(stems)
    return [_run(path, path.stem if is_clear else str(path.with_suffix(""))) for path in paths]


def _run(path: Path, name: str) -> Run:
    data = _read(path)
    rows = data.get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise CheckpointError(f"{path} has no rows; give a JSON file that `evaluate --out` wrote")
    for i, row in enumerate(rows):
        fault = row_fault(row)
        if fault is not None:
            raise CheckpointError(f"{path}: row {i} {fault}; is it a result?")
    about = {key: data.get(key) or {} for key in ("settings", "provenance")}
    for key, table in about.items():
        if not is_table_of_facts(table):
            raise CheckpointError(f"{path}: {key} is not what `evaluate` writes; is it a result?")
    return Run(name, rows, **about)


def load_trace(path: Path) -> dict[str, Any]:
    """Read the JSON of `trace --json`. Raises: CheckpointError if it is something else."""
    data = _read(path)
    if data.get("kind") != TRACE_KIND:
        raise CheckpointError(f"{path} is no trace; give a JSON file that `trace --json` wrote")
    if data.get("version") != TRACE_VERSION:
        raise CheckpointError(
            f"{path} is a trace of version {data.get('version')}; this program reads "
            f"{TRACE_VERSION}: record it again"
        )
    missing = [key for key in _TRACE_KEYS if key not in data]
    if missing:
        raise CheckpointError(f"{path}: the trace has no {', '.join(missing)}; record it again")
    return data


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; give a JSON file")
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds no JSON object; give a result or a trace")
    return data
