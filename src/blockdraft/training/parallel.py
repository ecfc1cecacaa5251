"""One or many processes: who is who, DDP and FSDP2, and sums over all of them.

`torchrun` starts the processes and says so in the environment; without it there is one process and
nothing here communicates. The loop and the module know none of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from blockdraft.errors import ConfigError
from blockdraft.training.objectives.base import Objective


@dataclass(frozen=True)
class World:
    """This process among all. `kind` is "single", "ddp" or "fsdp2"."""

    rank: int
    size: int
    device: torch.device
    kind: str

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0


class Pass(nn.Module):
    """Module and objective as one forward pass: what DDP and FSDP2 wrap.

    The objective may then use the module's parts as it likes, not through its `forward` alone.
    Plain tuples and tables go out: the wrappers look for tensors in nothing else.
    """

    def __init__(self, module: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.module = module
        self.objective = objective

    def forward(self, batch: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Loss sum, weight sum and metric sums of a batch."""
        sums = self.objective(self.module, batch)
        return sums.loss, sums.weight, dict(sums.metrics)


@contextmanager
def open_world(device: str, kind: str) -> Iterator[World]:
    """Join the processes that torchrun started; leaves them at the end.

    Args:
        device: "auto", "cpu" or "cuda"; each process takes the cuda device of its local rank.
        kind: "ddp" or "fsdp2", used if there are several processes.
    Raises: ConfigError if cuda is asked for and absent.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, place, "single")
        return
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, place, kind)
    finally:
        dist.destroy_process_group()


def _device(name: str, local_rank: int) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError('run.device is "cuda", but PyTorch finds none; use "auto" or "cpu"')
    if name == "cpu" or not has_cuda:
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def wrap(module: nn.Module, objective: Objective, world: World) -> nn.Module:
    """A `Pass` that the processes share; they start from the first one's weights.

    Call it before making optimisers: FSDP2 replaces the module's parameters by shards. It is one
    unit here: a drafter is a few layers, and what takes the memory is the optimiser's state.
    """
    whole = Pass(module, objective)
    if world.kind == "ddp":
        # A selector that is not trained yet has no gradients, which DDP must expect.
        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(
            whole, device_ids=ids, forward_sync_buffers=False, find_unused_parameters=True
        )
    if world.kind == "fsdp2":
        with torch.no_grad():
            for parameter in module.parameters():
                dist.broadcast(parameter, src=0)
        mesh = init_device_mesh(world.device.type, (world.size,))
        fully_shard(whole, mesh=mesh, ignored_params=_frozen(module))
    return whole


def _frozen(module: nn.Module) -> set[nn.Parameter]:
    return {parameter for parameter in module.parameters() if not parameter.requires_grad}


@contextmanager
def accumulating(wrapped: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Inside, gradients are summed over the processes only if this pass is the step's last."""
    if isinstance(wrapped, DistributedDataParallel) and not is_last:
        with wrapped.no_sync():
            yield
        return
    if isinstance(wrapped, FSDPModule):
        wrapped.set_requires_gradient_sync(is_last)
    yield


@contextmanager
def whole_weights(wrapped: nn.Module) -> Iterator[None]:
    """Inside, the module's parameters are whole plain tensors; all processes must enter together.

    Not FSDP2's own unsharding: `state_dict` would shard again at once, and whoever then looks at a
    tensor on one process alone waits for the others forever.
    """
    if not isinstance(wrapped, FSDPModule):
        yield
        return
    wrapped.reshard()
    shards = [
        (part, name, parameter)
        for part in wrapped.modules()
        for name, parameter in part.named_parameters(recurse=False)
        if isinstance(parameter, DTensor)
    ]
    for part, name, parameter in shards:
        assert isinstance(parameter, DTensor)
        whole = parameter.full_tensor().detach()
        part.register_parameter(name, nn.Parameter(whole, requires_grad=False))
    try:
        yield
    finally:
        for part, name, parameter in shards:
            part.register_parameter(name, parameter)


def sum_over_processes(values: Tensor, world: World) -> Tensor:
    """The sum over all processes, on each of them."""
    if world.size > 1:
        dist.all_reduce(values)
    return values


def is_any(value: bool, world: World) -> bool:
    """Whether it is so on any process; the same answer on all of them."""
    if world.size == 1:
        return value
    flag = torch.tensor(int(value), device=world.device)
    return bool(sum_over_processes(flag, world))


def gather_objects(value: Any, world: World) -> list[Any]:
    """Every process's value, by rank, on each of them."""
    if world.size == 1:
        return [value]
    gathered: list[Any] = [None] * world.size
    dist.all_gather_object(gathered, value)
    return gathered


def wait_for_all(world: World) -> None:
    """Return when every process is here."""
    if world.size > 1:
        dist.barrier()
