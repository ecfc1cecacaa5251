"""One update: gradients of every pass, divided by the sum of all weights, clipped, applied.

Dividing at the end, by the weights of all passes of all processes, makes the update that of one
process with the whole batch, however it was split.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blockdraft.errors import ConfigError, NumericsError
from blockdraft.training.meter import Meter, StepTotals
from blockdraft.training.optimizer import clip_gradients
from blockdraft.training.parallel import accumulating, gather_objects, sum_over_processes
from blockdraft.training.run_state import RunState
from blockdraft.training.schedule import rate_share

#: Sample ids named in a message; the rest is counted.
_MAX_NAMED = 8


def take_step(state: RunState, meter: Meter) -> StepTotals:
    """One update; `state.step` counts it.

    Raises: NumericsError if the loss or the gradient is not finite; ConfigError if nothing had a
        weight. The weights are as before then.
    """
    losses = _add_gradients(state, meter)
    sums = torch.stack([torch.stack(each) for each in losses.values()]).sum(0)
    loss, weight, num_slots = sum_over_processes(sums, state.world).tolist()
    if not math.isfinite(loss):
        bad = [ids for ids, [value, *_] in losses.items() if not bool(value.isfinite())]
        raise NumericsError(_message(state, f"the loss is {loss}", bad))
    if not weight > 0:
        raise ConfigError(_message(state, "no slot has a weight", list(losses)))
    # The processes' gradients were averaged; their sum is wanted.
    scale = state.world.size / weight
    norm = clip_gradients(state.optimizers.parameters(), scale, state.recipe.optimizer.clip_norm)
    if not math.isfinite(norm):
        what = f"the gradient's norm is {norm} (the loss is finite)"
        raise NumericsError(_message(state, what, list(losses)))
    state.optimizers.step(rate_share(state.step, state.recipe.schedule))
    if state.ema is not None:
        state.ema.update()
    state.step += 1
    return StepTotals(loss, weight, int(num_slots), norm)


def _add_gradients(state: RunState, meter: Meter) -> dict[tuple[str, ...], list[Tensor]]:
    """Sum the gradients of all passes; loss, weight and slots of each, by its sample ids."""
    device = state.world.device
    state.optimizers.zero_grad()
    found: dict[tuple[str, ...], list[Tensor]] = {}
    for i in range(state.num_passes):
        batch = next(state.parts.stream).to(device)
        with accumulating(state.wrapped, is_last=i == state.num_passes - 1):
            loss, weight, metrics = state.wrapped(batch)
            loss.backward()
        meter.metrics(metrics)
        numbers = (loss.detach(), weight, torch.tensor(batch.num_slots, device=device))
        found[(str(i), *batch.sample_ids)] = [number.double() for number in numbers]
    return found


def _message(state: RunState, what: str, batches: list[tuple[str, ...]]) -> str:
    """`what`, where, and for which samples of all processes (the first of a key is its pass)."""
    mine = [sample for _, *samples in batches for sample in samples]
    every = [sample for part in gather_objects(mine, state.world) for sample in part]
    more = f" and {len(every) - _MAX_NAMED} more" if len(every) > _MAX_NAMED else ""
    return (
        f"step {state.step + 1}: {what}; samples {', '.join(every[:_MAX_NAMED])}{more}. Nothing was"
        " saved since the last checkpoint: look at these samples or lower the learning rate, then"
        " use --resume"
    )
