"""Held-out figures of a run: the objective's own on fixed blocks, and really decoded answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from blockdraft.data.anchors import draw_anchors
from blockdraft.data.answers import Answer
from blockdraft.data.collate import BlockBatch, collate
from blockdraft.data.stream import SampleSource
from blockdraft.drafters.base import Drafter
from blockdraft.drafters.config import DFlashConfig
from blockdraft.registry import drafter_class
from blockdraft.targets.load import LoadedTarget
from blockdraft.training.heldout import Decoding, TeacherForced
from blockdraft.training.interfaces import Evaluation
from blockdraft.training.module import DrafterModule
from blockdraft.training.objectives.base import Objective
from blockdraft.training.recipe import TrainRecipe


def fixed_batches(
    recipe: TrainRecipe, source: SampleSource, indices: Sequence[int], teacher_width: int
) -> list[BlockBatch]:
    """Blocks of the held-out samples, the same at every evaluation."""
    each, batches = recipe.batch.sequences_per_pass, []
    for start in range(0, len(indices), each):
        samples = source.batch(indices[start : start + each])
        anchors = [
            draw_anchors(
                np.random.default_rng((recipe.run.seed, 2, start + i)),
                sample.prompt_len,
                len(sample.token_ids),
                recipe.data.num_anchors,
            )
            for i, sample in enumerate(samples)
        ]
        batches.append(collate(samples, anchors, recipe.drafter.block_size, teacher_width))
    return batches


def teacher_forced(
    objective: Objective, batches: Sequence[BlockBatch], device: torch.device
) -> Evaluation:
    """Figures with the true text before every slot."""
    return TeacherForced(objective, [batch.to(device) for batch in batches])


def decoding(
    recipe: TrainRecipe,
    answers: Sequence[Answer],
    config: DFlashConfig,
    buffers: Mapping[str, Tensor],
    load: Callable[[], LoadedTarget],
) -> Evaluation:
    """Figures of answers decoded anew, every `run.decode_every` steps and at the last one.

    Args:
        load: the target; asked for at the first use, since many runs never decode.
    """
    every, last, found = recipe.run.decode_every, recipe.schedule.max_steps, list[Decoding]()

    def evaluate(step: int, module: nn.Module) -> Mapping[str, float]:
        if step % every and step != last:
            return {}
        if not found:
            loaded = load()
            make = drafter_maker(config, buffers, loaded)
            found.append(Decoding(loaded, answers, make))
        return found[0](step, module)

    return evaluate


def drafter_maker(
    config: DFlashConfig, buffers: Mapping[str, Tensor], loaded: LoadedTarget
) -> Callable[[DrafterModule], Drafter]:
    """Makes the drafter that a module's checkpoint would be, in what the target computes in."""
    target = loaded.target

    def make(module: DrafterModule) -> Drafter:
        drafter: Drafter = drafter_class(config.method).from_tensors(
            config,
            {**module.checkpoint_tensors(), **buffers},
            dtype=target.info.dtype,
            device=target.device,
        )
        return drafter

    return make
