"""From settings to the result JSON: engines, tasks, measured runs, rows."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft.errors import ConfigError, UserError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.benchmark import WATCHED, Cell, Settings, run_all
from blockdraft.evaluation.candidates import add_counts, candidate_figures
from blockdraft.evaluation.compare import NOTHING, against_plain
from blockdraft.evaluation.engines import PLAIN, Engine
from blockdraft.evaluation.journal import Journal
from blockdraft.evaluation.marks import accuracy
from blockdraft.evaluation.pairs import against_others
from blockdraft.evaluation.provenance import code_digest, machine, provenance, versions
from blockdraft.evaluation.rows import row_of
from blockdraft.evaluation.tasks import Task


def evaluate(
    engines: Mapping[str, Engine],
    tasks: Sequence[Task],
    settings: Settings,
    out: Path,
    *,
    must_be_equal: bool,
    run_code: bool = False,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, write `out`, and return what was written.

    An interrupted run leaves `<out>.journal` and is resumed by the same call. Provenance tells the
    code, machine, target and every drafter.

    Args:
        must_be_equal: see `against_plain`.
        run_code: see `accuracy`.
    Raises: ConfigError if two tasks have one name, or a journal is of another run: of other
        settings, models, code, machine or packages.
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"tasks are {names}; give one or several of different names")
    about = _about(engines)
    described = {"settings": vars(settings), "tasks": [_task(task) for task in tasks], **about}
    whole = {
        "settings or models": described,
        "code": code_digest(),
        "machine or threads": machine(),
        "package versions": versions(),
    }
    journal = Journal(out.with_name(out.name + ".journal"), whole)
    runs = run_all(engines, tasks, settings, journal, log)
    rows = _rows(runs, tasks, must_be_equal, run_code)
    result = {
        "provenance": provenance(about, seed=settings.seed),
        "settings": {**vars(settings), "tasks": [_task(task, short=True) for task in tasks]},
        "rows": rows,
    }
    _write(out, result)
    journal.remove()
    return result


def _about(engines: Mapping[str, Engine]) -> dict[str, Any]:
    described = {method: engine.describe() for method, engine in engines.items()}
    first = dict(next(iter(described.values())))
    drafters = {method: about.get("drafter") for method, about in described.items()}
    return {**first, "drafter": drafters}


def _task(task: Task, short: bool = False) -> dict[str, Any]:
    about = {"name": task.name, "source": task.source, "num_prompts": len(task.prompts)}
    if short:
        return about
    return {**about, "prompts": [[prompt.id, *prompt.turns] for prompt in task.prompts]}


def _rows(
    runs: Mapping[Cell, list[ChunkRun]],
    tasks: Sequence[Task],
    must_be_equal: bool,
    run_code: bool,
) -> list[dict[str, Any]]:
    by_name = {task.name: task for task in tasks}
    alone = {cell: row_of(cell, own) for cell, own in runs.items() if cell.concurrency != WATCHED}
    rows = []
    for cell, row in alone.items():
        plain = dataclasses.replace(cell, method=PLAIN)
        more = dict(NOTHING)
        if plain in alone:
            more = against_plain(
                row, runs[cell], alone[plain], runs[plain], must_be_equal=must_be_equal
            )
        answers = [answer for run in runs[cell] for answer in run.answers]
        share = accuracy(by_name[cell.task], answers, run_code=run_code)
        watched = runs.get(dataclasses.replace(cell, concurrency=WATCHED), [])
        counts = [run.candidates for run in watched if run.candidates is not None]
        figures = candidate_figures(add_counts(counts) if counts else None)
        rows.append({**row, **more, "accuracy": share, **figures})
    return against_others(rows, PLAIN)


def _write(out: Path, result: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, out)


def check_equal(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises: UserError, naming the first, if greedy outputs that must be equal are not."""
    refused = [row for row in rows if row["speedup_refused"]]
    if refused:
        row = refused[0]
        raise UserError(
            f"no speed-up for {row['method']} on {row['task']}: {row['speedup_refused']}; drafting "
            "must change nothing here, so this is a fault: please report it"
        )
