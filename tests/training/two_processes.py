"""Two gloo processes that train a tiny module: started by `test_train_parallel.py`."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from blockdraft.errors import NumericsError
from blockdraft.training.loop import train
from blockdraft.training.parallel import World, open_world
from blockdraft.training.recipe import OptimizerRecipe
from tests.training.tiny_training import WIDTH, TinyObjective, TinyStream, tiny_parts, tiny_recipe

CASES = ("ddp-adamw", "fsdp2-adamw", "ddp-muon", "fsdp2-muon")


class SignalOfTheOther(TinyObjective):
    """The second process alone gets a signal, in its third step."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.passes_left = 3 if rank == 1 else -1

    def __call__(self, module: nn.Module, batch: Any) -> Any:
        self.passes_left -= 1
        if self.passes_left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__call__(module, batch)


class NoHead(TinyObjective):
    """Does not use the head: its parameters have no gradient on any process."""

    def __call__(self, module: nn.Module, batch: Any) -> Any:
        hidden: nn.Module = module.fc  # type: ignore[assignment]
        return super().__call__(hidden, batch)


def evaluate(step: int, module: nn.Module) -> dict[str, float]:
    """A figure of the whole weights; asked on the first process alone, so nothing may be shared."""
    found = module.state_dict()
    assert not any(isinstance(tensor, DTensor) for tensor in found.values())
    assert module(torch.ones(1, WIDTH)).shape == (1, 2)
    return {"figure": float(found["fc.weight"].sum())}


def main(folder: Path, ports: Iterator[str]) -> None:
    """Every case, one after the other, each with its own port: an old one may still be closing."""
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "localhost"
    for case in CASES:
        kind, name = case.split("-")
        os.environ["MASTER_PORT"] = next(ports)
        with open_world("cpu", kind) as world:
            check_training(folder / case, name, world)
            if name == "adamw":
                check_errors(folder / f"{case}-bad", world)
                recipe = tiny_recipe(folder / f"{case}-no-head")
                train(recipe, tiny_parts(recipe, world, objective=NoHead()), world)


def check_training(folder: Path, name: str, world: World) -> None:
    """Six steps; with AdamW stopped from the side, then resumed."""
    optimizer = OptimizerRecipe(name=name, lr=0.05, ema_decay=0.9)
    recipe = tiny_recipe(folder, optimizer=optimizer)
    recipe = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, evaluate_every=3))
    parts = tiny_parts(recipe, world, evaluations=(evaluate,))
    if name == "adamw":
        stopping = dataclasses.replace(parts, objective=SignalOfTheOther(world.rank))
        outcome = train(recipe, stopping, world)
        reason = "SIGTERM" if world.rank == 1 else "another process"
        assert (outcome.step, outcome.stopped_by) == (3, reason), outcome
        parts = tiny_parts(recipe, world, evaluations=(evaluate,))
    assert train(recipe, parts, world, resume=True).step == 6


def check_errors(folder: Path, world: World) -> None:
    """A loss that is not finite on the second process names its samples on both."""
    recipe = tiny_recipe(folder)
    stream = TinyStream(recipe.batch, world.rank, world.size, bad_step=1)
    with pytest.raises(NumericsError, match=r"step 2: .* s1\.4, s1\.5, s1\.6, s1\.7\. "):
        train(recipe, tiny_parts(recipe, world, stream=stream), world)


if __name__ == "__main__":
    main(Path(sys.argv[1]), iter(sys.argv[2:]))
