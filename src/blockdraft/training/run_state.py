"""Everything that changes while a run goes on, and how it is saved and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockdraft.config import as_plain
from blockdraft.errors import ConfigError
from blockdraft.json_text import parse_json
from blockdraft.training import checkpoint as saved
from blockdraft.training.ema import Ema
from blockdraft.training.interfaces import DataStream, Evaluation, Export
from blockdraft.training.objectives.base import Objective
from blockdraft.training.optimizer import Optimizers, make_optimizers
from blockdraft.training.parallel import World, gather_objects, wrap
from blockdraft.training.recipe import TrainRecipe

CHECKPOINT_FOLDER = "checkpoints"

#: Recipe fields that a run keeps from its first step to its last.
_FIXED = ("target", "drafter.", "optimizer.name")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop is given: all that depends on the method and on the target.

    Attributes:
        module: trained parameters, on the world's device.
        stream: told the world's rank and size.
        evaluations: held-out figures; called on the first process.
        export: writes the drafter whenever the run is saved; called on the first process.
        facts: what the data are; a run that is resumed with others says so.
    """

    module: nn.Module
    objective: Objective
    stream: DataStream
    evaluations: tuple[Evaluation, ...] = ()
    export: Export | None = None
    facts: Mapping[str, str | int] = field(default_factory=dict)


@dataclass
class RunState:
    """A run between two steps; `step` counts the updates done."""

    recipe: TrainRecipe
    parts: Parts
    world: World
    wrapped: nn.Module
    optimizers: Optimizers
    ema: Ema | None
    num_passes: int
    step: int = 0
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the module has the weights that are evaluated and written."""
        self.parts.module.eval()
        try:
            with nullcontext() if self.ema is None else self.ema.applied():
                yield
        finally:
            self.parts.module.train()

    def state(self) -> dict[str, Any]:
        """What the next step depends on; every process must ask, the first one writes it."""
        return {
            "recipe": json.dumps(as_plain(self.recipe)),
            "facts": dict(self.parts.facts),
            "model": saved.model_state(self.parts.module),
            "optimizer": saved.optimizer_state(self.optimizers),
            "ema": None if self.ema is None else saved.ema_state(self.ema),
            "stream": self.parts.stream.state_dict(),
            "random": gather_objects(saved.random_state(), self.world),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; what differs from the run before is told in `notes`.

        Raises: ConfigError or CheckpointError if it is the state of another drafter.
        """
        self._compare(parse_json(state["recipe"]), state["facts"])
        saved.load_model_state(self.parts.module, state["model"])
        saved.load_optimizer_state(self.optimizers, state["optimizer"])
        self._load_ema(state["ema"])
        self.parts.stream.load_state_dict(state["stream"])
        self.step = state["step"]
        if len(state["random"]) != self.world.size:
            self.notes.append(
                f"resumed with {self.world.size} processes, not as before with"
                f" {len(state['random'])}: equal but for rounding"
            )
        if self.world.rank < len(state["random"]):
            saved.load_random_state(state["random"][self.world.rank])

    def _load_ema(self, state: Mapping[str, Any] | None) -> None:
        if self.ema is None:
            return
        if state is None:
            self.notes.append("the run before kept no averaged weights: the average starts here")
            self.ema.restart()
        else:
            saved.load_ema_state(self.ema, state)

    def _compare(self, recipe: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        old = {**_leaves(recipe), **facts}
        new = {**_leaves(as_plain(self.recipe)), **self.parts.facts}
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) == new.get(name):
                continue
            change = f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
            if name.startswith(_FIXED):
                raise ConfigError(
                    f"{change}: a run cannot be resumed so; set it back or use another run.out"
                )
            self.notes.append(f"resumed with a change: {change}")


def new_state(recipe: TrainRecipe, parts: Parts, world: World) -> RunState:
    """A run before its first step.

    Raises: ConfigError if the sequences of a step cannot be dealt out evenly.
    """
    num_passes = recipe.batch.num_passes(world.size)
    torch.manual_seed(recipe.run.seed + world.rank)
    wrapped = wrap(parts.module, parts.objective, world)
    decay = recipe.optimizer.ema_decay
    return RunState(
        recipe,
        parts,
        world,
        wrapped,
        make_optimizers(parts.module, recipe.optimizer),
        Ema(parts.module, decay) if decay else None,
        num_passes,
    )


def checkpoints_of(recipe: TrainRecipe) -> saved.CheckpointFolder:
    """Where a run's checkpoints are."""
    return saved.CheckpointFolder(
        Path(recipe.run.out) / CHECKPOINT_FOLDER, recipe.run.keep_checkpoints
    )


def _leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        is_table = isinstance(value, Mapping)
        found |= _leaves(value, f"{prefix}{name}.") if is_table else {prefix + name: value}
    return found
