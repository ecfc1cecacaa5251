"""Checkpoints of a run: everything that the next step depends on, in one file.

Tensors are stored whole and by parameter name, so a run goes on with any number of processes,
wrapped in any way. A file appears under its name only when it is complete; the last few are kept.
"""

from __future__ import annotations

import os
import pickle
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from blockdraft.errors import CheckpointError
from blockdraft.training.ema import Ema
from blockdraft.training.optimizer import Optimizers

_FORMAT = 1
#: What PyTorch raises for files that are cut, empty or something else.
_DAMAGED = (OSError, RuntimeError, EOFError, LookupError, ValueError, pickle.UnpicklingError)

_NAME = re.compile(r"step-(\d{8})\.pt")


class CheckpointFolder:
    """The checkpoints of one run, oldest first; `keep` of the latest stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def files(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(each for each in self.folder.glob("step-*.pt") if _NAME.fullmatch(each.name))

    def file(self, step: int) -> Path:
        """Where the state after `step` updates goes."""
        return self.folder / f"step-{step:08d}.pt"

    def write(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after `step` updates, then remove the oldest beyond `keep`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.file(step)
        temporary = file.with_suffix(".partial")
        with temporary.open("wb") as out:
            torch.save({"format": _FORMAT, "step": step, **state}, out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
        for old in self.files()[: -self.keep]:
            old.unlink()

    def read_latest(self) -> dict[str, Any] | None:
        """The latest state; None if there is none.

        Raises: CheckpointError if the file is damaged or of another version.
        """
        files = self.files()
        if not files:
            return None
        file = files[-1]
        try:
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except _DAMAGED as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise CheckpointError(
                f"{file} cannot be read ({reason}); remove it to resume from the one before"
            ) from error
        if state.get("format") != _FORMAT:
            raise CheckpointError(
                f"{file} has format {state.get('format')}; this version reads {_FORMAT}"
            )
        return state


def model_state(module: nn.Module) -> dict[str, Tensor]:
    """The trained parameters, whole, on the CPU."""
    return {n: whole(p) for n, p in module.named_parameters() if p.requires_grad}


def load_model_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fill the trained parameters.

    Raises: CheckpointError if names or shapes differ: it is another drafter.
    """
    mine = {n: p for n, p in module.named_parameters() if p.requires_grad}
    shapes = ({n: tuple(p.shape) for n, p in mine.items()}, _shapes(state))
    if shapes[0] != shapes[1]:
        differing = sorted(n for n in mine | dict(state) if shapes[0].get(n) != shapes[1].get(n))
        raise CheckpointError(
            f"the checkpoint is of another drafter: {differing[0]} is"
            f" {shapes[1].get(differing[0], 'absent')} there and"
            f" {shapes[0].get(differing[0], 'absent')} in the recipe; use another run.out"
        )
    with torch.no_grad():
        for name, parameter in mine.items():
            parameter.copy_(_placed_like(state[name], parameter))


def _shapes(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def optimizer_state(optimizers: Optimizers) -> dict[str, dict[str, Any]]:
    """State by parameter name, whole, on the CPU."""
    return {
        optimizers.names[parameter]: {
            key: whole(value) if isinstance(value, Tensor) else value
            for key, value in optimizers.state_of(parameter).items()
        }
        for parameter in optimizers.parameters()
    }


def load_optimizer_state(optimizers: Optimizers, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Fill the optimisers' state."""
    for parameter in optimizers.parameters():
        stored = state[optimizers.names[parameter]]
        fresh = optimizers.state_of(parameter)
        fresh.clear()
        for key, value in stored.items():
            fresh[key] = _placed_like(value, parameter) if isinstance(value, Tensor) else value


def ema_state(ema: Ema) -> dict[str, Any]:
    """Averages, whole, on the CPU, and how many updates they have seen."""
    averages = {name: whole(tensor) for name, tensor in ema.averages.items()}
    return {"num_updates": ema.num_updates, "averages": averages}


def load_ema_state(ema: Ema, state: Mapping[str, Any]) -> None:
    """Fill the averages."""
    ema.num_updates = state["num_updates"]
    for name, tensor in ema.averages.items():
        tensor.copy_(_placed_like(state["averages"][name], tensor))


def random_state() -> dict[str, Any]:
    """States of every global random generator of this process."""
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": (str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
    }


def load_random_state(state: Mapping[str, Any]) -> None:
    """Set every global random generator."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))


def whole(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the CPU, gathered if it is sharded (all processes must call)."""
    value = tensor.detach()
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return value.to("cpu", copy=True)


def _placed_like(value: Tensor, like: Tensor) -> Tensor:
    """`value` on the device of `like`, and in its shards if it has its shape (counters do not)."""
    placed = value.to(like.device, copy=True)
    if isinstance(like, DTensor) and value.shape == like.shape:
        return distribute_tensor(placed, like.device_mesh, like.placements)
    return placed
