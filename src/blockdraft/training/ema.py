"""Exponential moving average of the weights: what is evaluated and written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """Averages of a module's trainable parameters.

    The decay grows with the updates, min(decay, (1 + n) / (10 + n)): else the first weights would
    stand in the average for the first 1 / (1 - decay) updates.

    Attributes:
        averages: by parameter name; sharded as the parameter is.
        num_updates: updates seen.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.num_updates = 0
        self._parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self.averages: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in self._parameters.items()
        }

    def restart(self) -> None:
        """Average from the present weights on."""
        self.num_updates = 0
        for name, parameter in self._parameters.items():
            self.averages[name].copy_(parameter.detach())

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the parameters; after every step."""
        self.num_updates += 1
        n = self.num_updates
        decay = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(
            list(self.averages.values()), list(self._parameters.values()), 1 - decay
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the module has the averages for weights; after it, its own, bit for bit."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._fill(self.averages)
        try:
            yield
        finally:
            self._fill(own)

    @torch.no_grad()
    def _fill(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
