"""A module, a stream and an objective so small that a step takes a millisecond."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from blockdraft.training.objectives.base import Objective, StepSums
from blockdraft.training.parallel import World
from blockdraft.training.recipe import (
    BatchRecipe,
    OptimizerRecipe,
    RunRecipe,
    ScheduleRecipe,
    TrainRecipe,
)
from blockdraft.training.run_state import Parts

WIDTH, SLOTS = 6, 3
SINGLE = World(0, 1, torch.device("cpu"), "single")


class TinyModule(nn.Module):
    """Parameters of every role, named like those of a drafter."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) / 3)

        self.fc = nn.Linear(WIDTH, WIDTH, bias=False)
        self.fc.weight = draw(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.candidate_selector = nn.Module()
        self.candidate_selector.successor_codebook = draw(WIDTH, 2)
        self.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.fc(x)) @ self.candidate_selector.successor_codebook
        return out


@dataclass(frozen=True)
class TinyBatch:
    x: Tensor
    weight: Tensor
    sample_ids: tuple[str, ...]

    @property
    def num_slots(self) -> int:
        return self.weight.numel()

    def to(self, device: torch.device) -> TinyBatch:
        return replace(self, x=self.x.to(device), weight=self.weight.to(device))


class TinyStream:
    """Each step's sequences are drawn together, then dealt out: rank r takes every size-th pass."""

    def __init__(
        self, batch: BatchRecipe, rank: int = 0, size: int = 1, bad_step: int | None = None
    ) -> None:
        self.batch, self.rank, self.size, self.bad_step = batch, rank, size, bad_step
        self.step, self.position = 0, 0

    def __next__(self) -> TinyBatch:
        num, each = self.batch.sequences_per_step, self.batch.sequences_per_pass
        generator = torch.Generator().manual_seed(1000 + self.step)
        x = torch.randn(num, SLOTS, WIDTH, generator=generator)
        # Weights differ a lot between sequences: a mean of means would show.
        weight = torch.rand(num, SLOTS, generator=generator) * torch.arange(1, num + 1)[:, None]
        if self.step == self.bad_step:
            x[-1] = torch.inf
        start = (self.position * self.size + self.rank) * each
        rows = slice(start, start + each)
        ids = tuple(f"s{self.step}.{i}" for i in range(num))[rows]
        self.position += 1
        if self.position == self.batch.num_passes(self.size):
            self.step, self.position = self.step + 1, 0
        return TinyBatch(x[rows], weight[rows], ids)

    def state_dict(self) -> dict[str, Any]:
        assert self.position == 0, "a state is asked for between steps"
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.position = state["step"], 0


class TinyObjective(Objective):
    """Weighted squares, with a little noise from the global generator: resuming must restore it."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def __call__(self, module: nn.Module, batch: Any) -> StepSums:
        out = module(batch.x)
        losses = ((out - 1) ** 2).sum(-1) + self.noise * torch.rand(out.shape[:-1]) * out[..., 0]
        by_position = losses.detach().sum(0)
        return StepSums(
            (losses * batch.weight).sum(),
            batch.weight.sum(),
            {
                "plain": losses.detach().sum(),
                "plain_count": torch.tensor(float(losses.numel())),
                "by_position": by_position,
                "by_position_count": torch.full_like(by_position, float(len(losses))),
            },
        )


def tiny_recipe(out: Path, **more: Any) -> TrainRecipe:
    """Six steps of eight sequences in two passes; `more` are whole tables of the recipe."""
    tables: dict[str, Any] = {
        "optimizer": OptimizerRecipe(lr=0.05, head_lr=0.02, ema_decay=0.9),
        "schedule": ScheduleRecipe(max_steps=6, warmup=0.3),
        "batch": BatchRecipe(sequences_per_step=8, sequences_per_pass=4),
        "run": RunRecipe(out=str(out), device="cpu", log_every=1, save_every=3, evaluate_every=0),
    }
    return TrainRecipe(**(tables | more))


def tiny_parts(recipe: TrainRecipe, world: World = SINGLE, **more: Any) -> Parts:
    """Parts whose stream is told the world; `more` are other parts."""
    parts: dict[str, Any] = {
        "module": TinyModule(),
        "objective": TinyObjective(),
        "stream": TinyStream(recipe.batch, world.rank, world.size),
    }
    return Parts(**(parts | more))


def weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the parameters."""
    return {name: each.detach().clone() for name, each in module.named_parameters()}
