"""The measured run: every method answers the same prompts in turns, warm."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from blockdraft.errors import ConfigError
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.engines import WATCHED_CHUNK, Engine, LocalEngine
from blockdraft.evaluation.journal import Journal
from blockdraft.evaluation.progress import Progress
from blockdraft.evaluation.run_chunk import sampling_of
from blockdraft.evaluation.tasks import EvalPrompt, Task
from blockdraft.types import SamplingParams

#: With several prompts at once, a chunk holds this many times as many: its end runs half empty.
_CHUNK_FACTOR = 4

#: The concurrency of cells whose candidates are watched and whose clock is not.
WATCHED = 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is varied, and how prompts are answered.

    Attributes:
        concurrency: numbers of prompts that run at once.
        temperatures: 0 is greedy; `top_p` and `top_k` hold for the others.
        seed: of the random streams; prompt i of a task samples with seed + i. Prompts at once whose
            drafts are fitted to the load have fresh streams instead.
        candidates: also watch, in greedy runs that are not timed, what drafters chose from.
        adaptive: the methods of this process fit their drafts to the load.
    Raises: ConfigError for an empty list or a value out of range.
    """

    concurrency: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    max_tokens: int = 256
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    candidates: bool = True
    adaptive: bool = False

    def __post_init__(self) -> None:
        for name in ("concurrency", "temperatures"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give one value or several different")
        if any(value < 1 for value in self.concurrency):
            raise ConfigError(f"concurrency is {list(self.concurrency)}; each must be 1 or more")
        if self.max_tokens < 2:
            raise ConfigError(f"max_tokens is {self.max_tokens}; speed needs at least 2")
        # Whatever the temperatures, what would be wrong for one of them is told.
        SamplingParams(top_p=self.top_p, top_k=self.top_k)
        for temperature in self.temperatures:
            self.sampling(temperature)

    def sampling(self, temperature: float) -> SamplingParams:
        """Parameters of the first prompt of a task."""
        params = SamplingParams(max_tokens=self.max_tokens, temperature=temperature, seed=self.seed)
        if params.is_greedy:
            return params
        return SamplingParams(**{**vars(params), "top_p": self.top_p, "top_k": self.top_k})


@dataclass(frozen=True)
class Cell:
    """One row of the result; those at a concurrency of `WATCHED` are added to the timed ones."""

    task: str
    method: str
    concurrency: int
    temperature: float


@dataclass(frozen=True, kw_only=True)
class _Unit:
    """A chunk of prompts for one cell."""

    cell: Cell
    number: int
    prompts: Sequence[EvalPrompt]
    params: Sequence[SamplingParams]

    @property
    def key(self) -> str:
        return json.dumps([*vars(self.cell).values(), self.number])


def run_all(
    engines: Mapping[str, Engine],
    tasks: Sequence[Task],
    settings: Settings,
    journal: Journal,
    log: Callable[[str], None],
) -> dict[Cell, list[ChunkRun]]:
    """Run what the journal lacks, and return everything."""
    units = [*_units(list(engines), tasks, settings), *_watched(engines, tasks, settings)]
    _say_what_is_not_watched(engines, settings, log)
    finished = {unit.key: journal.get(unit.key) for unit in units}
    left = [unit for unit in units if finished[unit.key] is None]
    progress = Progress(sum(len(unit.prompts) for unit in units), log)
    if len(left) < len(units):
        num_done = sum(len(unit.prompts) for unit in units if finished[unit.key] is not None)
        log(f"resuming: {num_done} answers were finished before")
        progress.skip(num_done)
    if left:
        _warm_up(engines, tasks[0].prompts[0], settings, log)
    for unit in left:
        finished[unit.key] = new = _run(engines[unit.cell.method], unit)
        journal.add(unit.key, new)
        progress.advance(len(unit.prompts), f"{unit.cell.task}, {unit.cell.method}")
    found: dict[Cell, list[ChunkRun]] = {}
    for unit in units:
        run = finished[unit.key]
        assert run is not None
        found.setdefault(unit.cell, []).append(run)
    return found


def _run(engine: Engine, unit: _Unit) -> ChunkRun:
    if unit.cell.concurrency != WATCHED:
        return engine.run(unit.prompts, unit.params, unit.cell.concurrency)
    assert isinstance(engine, LocalEngine)
    return engine.watch(unit.prompts, unit.params)


def _units(methods: list[str], tasks: Sequence[Task], settings: Settings) -> Iterator[_Unit]:
    """Chunk by chunk, all methods before the next chunk; another one begins each time."""
    runs = itertools.product(tasks, settings.temperatures, settings.concurrency)
    for task, temperature, concurrency in runs:
        params = settings.sampling(temperature)
        size = 1 if concurrency == 1 else _CHUNK_FACTOR * concurrency
        for number, start in enumerate(range(0, len(task.prompts), size)):
            prompts = task.prompts[start : start + size]
            own = [sampling_of(params, start + i) for i in range(len(prompts))]
            first = number % len(methods)
            for method in (*methods[first:], *methods[:first]):
                cell = Cell(task.name, method, concurrency, temperature)
                yield _Unit(cell=cell, number=number, prompts=prompts, params=own)


def _watched(
    engines: Mapping[str, Engine], tasks: Sequence[Task], settings: Settings
) -> Iterator[_Unit]:
    """Greedy runs of the drafters that have candidates to look at."""
    methods = [name for name, engine in engines.items() if _why_not(engine) is None]
    greedy = _greedy(settings)
    if not settings.candidates:
        return
    for task, method, temperature in itertools.product(tasks, methods, greedy):
        cell, params = Cell(task.name, method, WATCHED, temperature), settings.sampling(temperature)
        for number, start in enumerate(range(0, len(task.prompts), WATCHED_CHUNK)):
            prompts = task.prompts[start : start + WATCHED_CHUNK]
            yield _Unit(cell=cell, number=number, prompts=prompts, params=[params] * len(prompts))


def _greedy(settings: Settings) -> list[float]:
    return [t for t in settings.temperatures if settings.sampling(t).is_greedy]


def _why_not(engine: Engine) -> str | None:
    """Why an engine's candidates cannot be looked at; None if they can."""
    return engine.why_no_candidates if isinstance(engine, LocalEngine) else "a server shows none"


def _say_what_is_not_watched(
    engines: Mapping[str, Engine], settings: Settings, log: Callable[[str], None]
) -> None:
    """One line; nothing where it was asked to watch none."""
    if not settings.candidates:
        return
    reasons = {name: why for name, engine in engines.items() if (why := _why_not(engine))}
    if len(reasons) < len(engines) and not _greedy(settings):
        log("no candidates are looked at: that is done in greedy runs, and no temperature is 0")
    elif reasons:
        said = ", ".join(f"{name} ({why})" for name, why in reasons.items())
        log(f"no candidates to look at: {said}")


def _warm_up(
    engines: Mapping[str, Engine],
    prompt: EvalPrompt,
    settings: Settings,
    log: Callable[[str], None],
) -> None:
    """Packed weights, compiled kernels and caches are made before anything is timed."""
    log("warming up ..")
    for engine, temperature in itertools.product(engines.values(), settings.temperatures):
        params = SamplingParams(**{**vars(settings.sampling(temperature)), "max_tokens": 16})
        for concurrency in settings.concurrency:
            prompts = [EvalPrompt(id=str(i), turns=prompt.turns[:1]) for i in range(concurrency)]
            engine.run(prompts, [params] * concurrency, concurrency)
