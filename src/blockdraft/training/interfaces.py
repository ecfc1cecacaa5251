"""What the training loop needs from the method, and nothing else: it runs anything with these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn


class Batch(Protocol):
    """Sequences of one pass on one process."""

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Which samples these are, for messages."""
        ...

    @property
    def num_slots(self) -> int:
        """Slots that are trained on: the unit of speed."""
        ...

    def to(self, device: torch.device) -> Batch:
        """The same batch with its tensors on `device`."""
        ...


class DataStream(Protocol):
    """Batches without end. Told its rank and the number of processes, it deals each step's
    sequences out so that the step does not depend on that number; nor does its state.
    """

    def __next__(self) -> Batch: ...

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: numbers, texts, tensors, and lists and tables of these."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from there."""
        ...


#: Figures of a module at a step: called on the first process, with whole (averaged) weights.
Evaluation = Callable[[int, nn.Module], Mapping[str, float]]

#: Writes the finished drafter: called like an evaluation.
Export = Callable[[int, nn.Module], None]
