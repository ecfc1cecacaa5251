"""From settings to the result JSON: engines, tasks, measured runs, rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft.engine.llm import LLM
from blockdraft.errors import ConfigError, UserError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.benchmark import (
    PLAIN,
    Cell,
    Engine,
    LocalEngine,
    Settings,
    run_all,
)
from blockdraft.evaluation.compare import NOTHING, against_plain
from blockdraft.evaluation.journal import Journal
from blockdraft.evaluation.provenance import provenance
from blockdraft.evaluation.rows import row_of
from blockdraft.evaluation.tasks import Task
from blockdraft.registry import NONE, load_drafter


def local_engines(
    llm: LLM, methods: Sequence[str], num_draft_tokens: int | None = None
) -> dict[str, Engine]:
    """An engine for each method, all on one target.

    Args:
        llm: an engine without a drafter.
        methods: `plain`, names of drafters, folders of checkpoints.
    Raises: ConfigError for none, or one named twice; what `load_drafter` raises.
    """
    if not methods or len(set(methods)) < len(methods):
        raise ConfigError(f"methods are {list(methods)}; give one or several different ones")
    engines: dict[str, Engine] = {}
    for method in methods:
        if method == NONE:
            raise ConfigError(f"method {NONE!r} is called {PLAIN!r} here")
        drafter = None
        if method != PLAIN:
            drafter = load_drafter(method, llm.target, num_draft_tokens=num_draft_tokens)
        engines[method] = LocalEngine(LLM.from_parts(llm.loaded, drafter, llm.limits))
    return engines


def evaluate(
    engines: Mapping[str, Engine],
    tasks: Sequence[Task],
    settings: Settings,
    out: Path,
    *,
    must_be_equal: bool,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, write `out`, and return what was written.

    An interrupted run leaves `<out>.journal` and is resumed by the same call. Provenance tells the
    code, machine, target and every drafter.

    Args:
        must_be_equal: see `against_plain`.
    Raises: ConfigError if two tasks have one name, or a journal is of another run.
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"tasks are {names}; give one or several of different names")
    about = _about(engines)
    described = {"settings": vars(settings), "tasks": [_task(task) for task in tasks], **about}
    journal = Journal(out.with_name(out.name + ".journal"), described)
    runs = run_all(engines, tasks, settings, journal, log)
    rows = _rows(runs, tasks, must_be_equal)
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
    runs: Mapping[Cell, list[ChunkRun]], tasks: Sequence[Task], must_be_equal: bool
) -> list[dict[str, Any]]:
    alone = {cell: row_of(cell, found) for cell, found in runs.items()}
    rows = []
    for cell, row in alone.items():
        plain = Cell(cell.task, PLAIN, cell.concurrency, cell.temperature)
        more = dict(NOTHING)
        if plain in alone:
            more = against_plain(
                row, runs[cell], alone[plain], runs[plain], must_be_equal=must_be_equal
            )
        rows.append({**row, **more})
    return rows


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
