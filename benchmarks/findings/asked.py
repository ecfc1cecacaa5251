"""What the findings are measured on: prompts of the public sets, and drafters opened by hand."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, NamedTuple

from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.errors import ConfigError
from blockdraft.evaluation.tasks import load_task
from blockdraft.interop.zlab import checkpoint_fingerprint, read_provenance, read_zlab
from blockdraft.registry import drafter_class, shipped_checkpoint
from blockdraft.targets.base import Target

TASKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt-bench")


class Asked(NamedTuple):
    """A prompt: the first turn of a row of a set."""

    task: str
    id: str
    text: str


def ask(num_per_set: int) -> list[Asked]:
    """So many prompts of every set, always the same ones.

    They come from $BLOCKDRAFT_DATA/eval (default ../shared/data/eval), else from the hub.
    """
    folder = Path(os.environ.get("BLOCKDRAFT_DATA", "../shared/data"))
    return [
        Asked(name, prompt.id, prompt.turns[0])
        for name in TASKS
        for prompt in load_task(
            name, data_dir=folder if folder.is_dir() else None, num_prompts=num_per_set
        ).prompts
    ]


def ids_of(asked: list[Asked]) -> dict[str, list[str]]:
    """Ids of the prompts of each set, for provenance."""
    return {name: [each.id for each in asked if each.task == name] for name in TASKS}


def open_drafter(
    place: str, target: Target, *, kernels: str = "auto", **changes: Any
) -> BlockDrafter:
    """A checkpoint bound to `target`, with some fields of its config changed.

    Args:
        place: `dflash` or `dflash2` for the one that is shipped, or a folder.
        changes: fields of `DFlashConfig` that hold no weights, such as `selector_top_k`.
    Raises: ConfigError if there is no such checkpoint; CheckpointError, ConfigError as it is read.
    """
    folder = shipped_checkpoint(place, target.info.name) or Path(place)
    if not folder.is_dir():
        raise ConfigError(f"no drafter {place!r}: none is shipped by this name, and no folder")
    config, tensors = read_zlab(folder)
    about = read_provenance(folder) | {"checkpoint_fingerprint": checkpoint_fingerprint(folder)}
    drafter: BlockDrafter = drafter_class(config.method).from_tensors(
        dataclasses.replace(config, **changes),
        tensors,
        dtype=target.info.dtype,
        device=target.device,
        provenance=about,
        source=folder.name,  # where it lies is nobody else's affair
        kernels=kernels,
    )
    drafter.bind(target)
    return drafter
