"""What a run would be: its recipe, parameters, memory and time, from one step that is undone."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from typing import Any

import torch

from blockdraft.config import as_plain
from blockdraft.training.meter import Meter
from blockdraft.training.optimizer import role
from blockdraft.training.parallel import World
from blockdraft.training.recipe import TrainRecipe
from blockdraft.training.run_state import Parts, RunState, new_state
from blockdraft.training.step import take_step

#: Steps that are timed, after one that is not.
_NUM_TIMED = 2


def dry_run(recipe: TrainRecipe, parts: Parts, world: World) -> dict[str, Any]:
    """Take a few steps and throw them away; nothing is written.

    Returns: `recipe` with every default spelled out, `parameters` by role, `state_bytes` by what
        they hold, `peak_memory_bytes` as measured, `slots_per_step`, `seconds_per_step`,
        `estimated_hours` of the whole run without its evaluations, and the first `loss`.
    """
    position = parts.stream.state_dict()
    state = new_state(recipe, parts, world)
    meter = Meter(world, 0, recipe.schedule.max_steps)
    first = take_step(state, meter)
    started = time.perf_counter()
    timed = [take_step(state, meter) for _ in range(_NUM_TIMED)]
    seconds = (time.perf_counter() - started) / _NUM_TIMED
    parts.stream.load_state_dict(position)
    return {
        "recipe": as_plain(recipe),
        "parameters": count_parameters(parts),
        "state_bytes": state_bytes(state),
        "peak_memory_bytes": peak_memory_bytes(world),
        "slots_per_step": sum(each.num_slots for each in timed) // _NUM_TIMED,
        "seconds_per_step": seconds,
        "estimated_hours": seconds * recipe.schedule.max_steps / 3600,
        "loss": first.loss_sum / first.weight_sum,
        "num_processes": world.size,
    }


def count_parameters(parts: Parts) -> dict[str, int]:
    """Numbers that are trained, by role, and in all."""
    counts: Counter[str] = Counter()
    for name, parameter in parts.module.named_parameters():
        if parameter.requires_grad:
            counts[role(name, parameter)] += parameter.numel()
    return {**counts, "all": counts.total()}


def state_bytes(state: RunState) -> dict[str, int]:
    """Bytes of what stays between steps on this process, gradients included."""
    trained = state.optimizers.parameters()
    optimizer = [
        value
        for parameter in trained
        for value in state.optimizers.state_of(parameter).values()
        if isinstance(value, torch.Tensor)
    ]
    sizes = {
        "weights": trained,
        "gradients": trained,
        "optimizer": optimizer,
        "average": [] if state.ema is None else list(state.ema.averages.values()),
    }
    return {name: sum(_local_bytes(each) for each in tensors) for name, tensors in sizes.items()}


def _local_bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.nbytes)


def peak_memory_bytes(world: World) -> int:
    """Most memory this process has had: of the device, or resident."""
    if world.device.type == "cuda":
        return torch.cuda.max_memory_allocated(world.device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
