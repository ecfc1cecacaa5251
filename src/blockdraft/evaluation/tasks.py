"""Prompts to evaluate on: public sets by name, the set that comes with the package, own files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError, ConfigError
from blockdraft.evaluation.task_sources import SOURCES, TaskSource
from blockdraft.json_text import parse_json

#: Names the folder that holds local copies of the public sets, as `<folder>/eval/<set>.jsonl`.
DATA_VARIABLE = "BLOCKDRAFT_DATA"

#: The set written for the project; needs no network.
OFFLINE = "offline"

_SAMPLE_SEED = 0


@dataclass(frozen=True, kw_only=True)
class EvalPrompt:
    """One conversation: user turns, sent one after the other with the answers in between.

    Attributes:
        answer: the right answer, where the set has one.
        extra: whatever else the row has; marking code needs `test` and `entry_point`.
    """

    id: str
    turns: tuple[str, ...]
    answer: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A set of prompts. `check` says how its answers are marked, None that they are not."""

    name: str
    source: str
    prompts: tuple[EvalPrompt, ...]
    check: str | None = None


def load_task(
    name: str,
    *,
    data_dir: Path | None = None,
    num_prompts: int | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Task:
    """A task by name, or the JSONL file of a path.

    Args:
        name: a public set, `offline`, or a file of rows `{"id", "turns": [..], "answer"?}`, which
            are sent as they are.
        data_dir: folder of local copies; None takes $BLOCKDRAFT_DATA. Sets that it lacks come from
            the Hugging Face hub.
        num_prompts: draw so many, always the same ones in the same order; None takes all.
    Raises: ConfigError for an unknown name, or a set that is nowhere; CheckpointError for rows that
        are no prompts, or a hub that does not give them.
    """
    if num_prompts is not None and num_prompts < 1:
        raise ConfigError(f"num_prompts is {num_prompts}; it must be at least 1")
    rows, source, where = _find(name, data_dir)
    prompts = [_prompt(row, source, f"{where}, row {i + 1}") for i, row in enumerate(rows)]
    _check_ids(prompts, where)
    task_name = name if name in (*SOURCES, OFFLINE) else Path(name).stem
    chosen = _sample(task_name, prompts, num_prompts, log)
    check = source.check if source else None
    return Task(name=task_name, source=where, prompts=tuple(chosen), check=check)


def _find(
    name: str, data_dir: Path | None
) -> tuple[Iterable[Mapping[str, Any]], TaskSource | None, str]:
    """The rows of a task, what is known of it, and where they are from."""
    if name == OFFLINE:
        file = resources.files("blockdraft.evaluation") / "prompts" / f"{OFFLINE}.jsonl"
        return _parse(file.read_text(encoding="utf-8"), "the offline set"), None, "blockdraft"
    source = SOURCES.get(name)
    if source is None:
        path = Path(name)
        if not path.is_file():
            known = ", ".join((*SOURCES, OFFLINE))
            raise ConfigError(f"no task {name!r}: not a name ({known}) and not a JSONL file")
        return _parse(_text(path), name), None, name
    local = _local(source, data_dir)
    if local is not None:
        # Where the folder lies is nobody else's affair: results name the file.
        return _parse(_text(local), str(local)), source, local.name
    return _from_hub(name, source), source, source.hub[0] if source.hub else ""


def _local(source: TaskSource, data_dir: Path | None) -> Path | None:
    variable = os.environ.get(DATA_VARIABLE)
    folder = data_dir or (Path(variable) if variable else None)
    if folder is None:
        return None
    if not folder.is_dir():
        given = "--data-dir" if data_dir else DATA_VARIABLE
        raise ConfigError(f"{given} is {folder}, which is not a folder")
    places = (folder / "eval" / source.file, folder / source.file)
    return next((place for place in places if place.is_file()), None)


def _from_hub(name: str, source: TaskSource) -> list[dict[str, Any]]:
    help_text = f"give --data-dir with eval/{source.file}, a JSONL file, or the task {OFFLINE!r}"
    if source.hub is None:
        raise ConfigError(f"task {name!r} has no copy here and is on no hub; {help_text}")
    import datasets  # type: ignore[import-untyped]

    path, config, split = source.hub
    try:
        rows = datasets.load_dataset(path, config, split=split)
    except Exception as error:  # the hub's client raises a dozen kinds; all mean the same here
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"task {name!r} could not be fetched from the hub ({path}: {reason[0]}); {help_text}"
        ) from error
    return [source.from_hub(row, index) for index, row in enumerate(rows)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text; convert it first") from error


def _parse(text: str, where: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(parse_json(line))
            except ValueError as error:
                raise CheckpointError(f"{where}, line {number} is not JSON: {error}") from error
    if not rows:
        raise CheckpointError(f"{where} has no prompts")
    return rows


def _prompt(row: Any, source: TaskSource | None, where: str) -> EvalPrompt:
    turns = row.get("turns") if isinstance(row, Mapping) else None
    is_valid = isinstance(turns, list) and turns and all(isinstance(t, str) and t for t in turns)
    if not is_valid or "id" not in row:
        raise CheckpointError(f'{where} is no prompt; write {{"id": .., "turns": ["text", ..]}}')
    assert isinstance(turns, list)
    first = source.wrap(turns[0]) if source else turns[0]
    # Answers that are no text (MT-Bench lists references) are for judges, not for marking.
    answer = row.get("answer")
    extra = {key: row[key] for key in row if key not in ("id", "turns", "answer")}
    return EvalPrompt(
        id=str(row["id"]),
        turns=(first, *turns[1:]),
        answer=str(answer) if isinstance(answer, str | int | float) else None,
        extra=extra,
    )


def _check_ids(prompts: Sequence[EvalPrompt], where: str) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise CheckpointError(f"{where} has the id {prompt.id!r} twice; ids must differ")
        seen.add(prompt.id)


def _sample(
    name: str, prompts: list[EvalPrompt], num: int | None, log: Callable[[str], None]
) -> list[EvalPrompt]:
    """The first of a fixed shuffle: sets are sorted by kind, and a larger run extends a smaller."""
    if num is None:
        return prompts
    if num > len(prompts):
        log(
            f"task {name}: has {len(prompts)} prompts, fewer than the {num} asked for; all are used"
        )
    shuffled = list(prompts)
    random.Random(_SAMPLE_SEED).shuffle(shuffled)
    return shuffled[:num]
