"""Figures of a drafter on text it never saw: as it is trained, and by really decoding.

The two must agree: where the teacher-forced lengths are much greater than what decoding commits,
training sees something that serving does not (see `blockdraft doctor`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from blockdraft.data.answers import Answer
from blockdraft.data.collate import BlockBatch
from blockdraft.drafters.base import Drafter
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import RunnerLimits
from blockdraft.targets.load import LoadedTarget
from blockdraft.training.objectives.base import Objective
from blockdraft.types import SamplingParams

_COUNT = "_count"


class TeacherForced:
    """The objective's own metrics over fixed batches.

    Lengths are tokens a cycle would commit: of each slot's best token (`unary`), of the selector
    given the true token before each slot, and of a perfect choice among the candidates (`oracle`).
    """

    def __init__(self, objective: Objective, batches: Sequence[BlockBatch]) -> None:
        self._objective, self._batches = objective, batches

    @torch.no_grad()
    def __call__(self, step: int, module: nn.Module) -> dict[str, float]:
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
        loss = weight = 0.0
        for batch in self._batches:
            out = self._objective(module, batch)
            loss, weight = loss + float(out.loss), weight + float(out.weight)
            for name, value in out.metrics.items():
                sums[name] = sums[name] + value.detach().double().cpu()
        return {"heldout/loss": loss / max(weight, 1e-9), **means(sums, "heldout/")}


def means(sums: dict[str, Tensor], prefix: str = "") -> dict[str, float]:
    """Each sum by its count; vectors by position become one figure a position, from 1 on."""
    out: dict[str, float] = {}
    for name, value in sums.items():
        if name.endswith(_COUNT):
            continue
        mean = value / sums[name + _COUNT].clamp_min(1)
        if mean.dim() == 0:
            out[prefix + name] = float(mean)
        else:
            out |= {f"{prefix}{name}/{i + 1}": float(x) for i, x in enumerate(mean)}
    return out


#: Makes a drafter out of the module that is being trained.
MakeDrafter = Callable[[Any], Drafter]


class Decoding:
    """Acceptance length of greedy decoding on held-out prompts, with the drafter as it stands.

    Args:
        loaded: the target.
        answers: prompts whose answers are decoded again.
        max_tokens: of each answer.
    """

    def __init__(
        self,
        loaded: LoadedTarget,
        answers: Sequence[Answer],
        make_drafter: MakeDrafter,
        max_tokens: int = 128,
    ) -> None:
        self._loaded, self._make_drafter, self._max_tokens = loaded, make_drafter, max_tokens
        self._prompts = [list(answer.prompt_ids) for answer in answers]

    @torch.no_grad()
    def __call__(self, step: int, module: nn.Module) -> dict[str, float]:
        drafter = self._make_drafter(module)
        drafter.bind(self._loaded.target)
        llm = LLM.from_parts(self._loaded, drafter, RunnerLimits(max_batch_size=8))
        outputs = llm.generate(self._prompts, SamplingParams(max_tokens=self._max_tokens))
        lengths = [o.speculation.mean_acceptance_length for o in outputs]
        known = [x for x in lengths if x is not None]
        width = max(len(o.speculation.accepted_by_position) for o in outputs)
        accepted, drafted = [0] * width, [0] * width
        for output in outputs:
            for i, n in enumerate(output.speculation.accepted_by_position):
                accepted[i] += n
                drafted[i] += output.speculation.drafted_by_position[i]
        by_position = {
            f"decoded/accepted/{i + 1}": a / max(d, 1)
            for i, (a, d) in enumerate(zip(accepted, drafted, strict=True))
        }
        return {"decoded/length": sum(known) / max(len(known), 1), **by_position}
