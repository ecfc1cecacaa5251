"""What the training loop needs of a method's objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class StepSums:
    """Sums over the slots of a batch: the loop divides them once all parts are there.

    Attributes:
        loss: sum of weight * loss over slots, differentiable.
        weight: sum of the weights, detached.
        metrics: detached sums; each `name` has its count in `name_count`.
    """

    loss: Tensor
    weight: Tensor
    metrics: dict[str, Tensor]


class Objective(ABC):
    """Turns a batch into a loss. Holds no parameters: those are the module's."""

    @abstractmethod
    def __call__(self, module: nn.Module, batch: Any) -> StepSums:
        """Loss and metrics of a batch, as sums."""
