"""THE training loop: step, log, save, evaluate. For any method, on any number of processes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from blockdraft.errors import ConfigError
from blockdraft.training.checkpoint import load_random_state, random_state
from blockdraft.training.logs import open_log
from blockdraft.training.meter import Meter
from blockdraft.training.parallel import World, is_any, wait_for_all, whole_weights
from blockdraft.training.recipe import TrainRecipe
from blockdraft.training.run_state import Parts, RunState, checkpoints_of, new_state
from blockdraft.training.signals import stop_on_signals
from blockdraft.training.step import take_step


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `stopped_by` is None if it did all its steps."""

    step: int
    checkpoint: Path
    stopped_by: str | None


def train(recipe: TrainRecipe, parts: Parts, world: World, *, resume: bool = False) -> Outcome:
    """Run to the last step, or until a signal or the time limit stops it; either way it is saved.

    Args:
        resume: go on from the latest checkpoint in `run.out`, bit for bit as if it had not
            stopped; starts at step 0 if there is none.
    Raises: ConfigError if `run.out` holds a run that is not to be resumed, or the batch cannot be
        dealt out; NumericsError if loss or gradient is not finite: nothing is saved then.
    """
    run, max_steps = recipe.run, recipe.schedule.max_steps
    state = new_state(recipe, parts, world)
    file = _resume(state) if resume else _need_empty(state)
    deadline = time.monotonic() + (run.stop_after_minutes * 60 or math.inf)
    with stop_on_signals() as stop, open_log(recipe, state.step, world) as log:
        for note in state.notes:
            log.event(state.step, note)
        if _is_due_for_figures(state) and is_any(log.lacks_figures(state.step), world):
            log.heldout(state.step, _evaluate(state))  # the run before ended first
        meter, is_stopped = Meter(world, state.step, max_steps), False
        while state.step < max_steps and not is_stopped:
            started = time.perf_counter()
            meter.step(take_step(state, meter), time.perf_counter() - started)
            if time.monotonic() > deadline:
                stop.ask("run.stop_after_minutes")
            is_stopped = is_any(bool(stop), world)
            is_last = is_stopped or state.step == max_steps
            if is_last or _is_due(state, run.log_every):
                log.training(meter.row(state.step, state.optimizers.rates()))
            if is_last or _is_due(state, run.save_every):
                file = _save(state)  # first: an evaluation that fails loses no step
            if _is_due_for_figures(state) and (not is_stopped or state.step == max_steps):
                log.heldout(state.step, _evaluate(state))
        stopped_by = (stop.reason or "another process") if state.step < max_steps else None
        log.event(state.step, _last_words(state, stopped_by, file))
    return Outcome(state.step, file, stopped_by)


def _is_due(state: RunState, every: int) -> bool:
    return every > 0 and state.step % every == 0


def _is_due_for_figures(state: RunState) -> bool:
    every = state.recipe.run.evaluate_every
    is_last = state.step == state.recipe.schedule.max_steps
    return every > 0 and state.step > 0 and (is_last or _is_due(state, every))


def _need_empty(state: RunState) -> Path:
    folder = checkpoints_of(state.recipe)
    files = folder.files()
    if files:
        raise ConfigError(
            f"{state.recipe.run.out} holds a run already ({files[-1].name}); go on with --resume,"
            " or choose another run.out"
        )
    return folder.folder


def _resume(state: RunState) -> Path:
    folder = checkpoints_of(state.recipe)
    found = folder.read_latest()
    if found is None:
        state.notes.append(f"no checkpoint in {folder.folder}: starting at step 0")
        return folder.folder
    state.load(found)
    state.notes.append(f"resumed at step {state.step} of {state.recipe.schedule.max_steps}")
    return folder.files()[-1]


def _evaluate(state: RunState) -> dict[str, float]:
    """Held-out figures of the averaged weights; the other processes wait for the first.

    The next step's random numbers are those of a run that does not evaluate: what was saved before
    goes on alike.
    """
    figures: dict[str, float] = {}
    random = random_state()
    with state.averaged(), whole_weights(state.wrapped):
        if state.world.is_first:
            for evaluation in state.parts.evaluations:
                figures |= evaluation(state.step, state.parts.module)
        wait_for_all(state.world)
    load_random_state(random)
    return figures


def _save(state: RunState) -> Path:
    """Checkpoint, then the drafter itself: killed in between, nothing is lost."""
    contents, folder = state.state(), checkpoints_of(state.recipe)
    file = folder.file(state.step)
    if state.world.is_first:
        folder.write(state.step, contents)
    if state.parts.export is not None:
        with state.averaged(), whole_weights(state.wrapped):
            if state.world.is_first:
                state.parts.export(state.step, state.parts.module)
    wait_for_all(state.world)
    return file


def _last_words(state: RunState, stopped_by: str | None, file: Path) -> str:
    if stopped_by is None:
        return f"finished: {state.step} steps, saved as {file}"
    return f"stopped by {stopped_by} at step {state.step}, saved as {file}; go on with --resume"
