"""Outputs of a transformers model's layers, caught on their way.

`output_hidden_states` is not used: its last entry has gone through the final norm already, and
a tapped last layer must not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from blockdraft.errors import UnsupportedError
from blockdraft.types import TargetInfo


class Taps:
    """What was caught in one pass of one sequence."""

    def __init__(self, info: TargetInfo, layer_ids: Sequence[int]) -> None:
        self._info = info
        self._layer_ids = tuple(layer_ids)
        self._caught: dict[int, Tensor] = {}

    def catch(self, layer_id: int, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        shape = tuple(hidden.shape)
        if len(shape) != 3 or shape[0] != 1 or shape[2] != self._info.hidden_size:
            raise UnsupportedError(
                f"layer {layer_id} of {self._info.name} gives {list(shape)}, not one row of width "
                f"{self._info.hidden_size} a token: a drafter cannot read that"
            )
        self._caught[layer_id] = hidden[0]

    def features(self) -> Tensor:
        """The asked layers' rows side by side, [t, len(ids) * m]; empty if none was asked."""
        parts = [self._caught[i] for i in self._layer_ids]
        return torch.cat(parts, -1) if parts else torch.empty(0)


class LayerTaps:
    """Finds the decoder layers of a model and listens to them on demand.

    Raises: UnsupportedError if the model has no list of as many layers as its config says.
    """

    def __init__(self, model: Any, info: TargetInfo) -> None:
        self._info = info
        self._layers = _find_layers(model.get_decoder(), info)

    @contextmanager
    def listen(self, layer_ids: Sequence[int]) -> Iterator[Taps]:
        """Catch the outputs of these layers during the passes inside the block."""
        taps = Taps(self._info, layer_ids)
        hooks = [
            self._layers[i].register_forward_hook(
                lambda module, args, output, i=i: taps.catch(i, output)
            )
            for i in set(layer_ids)
        ]
        try:
            yield taps
        finally:
            for hook in hooks:
                hook.remove()


def _find_layers(decoder: nn.Module, info: TargetInfo) -> nn.ModuleList:
    """The list as long as the model is deep; of several, the one that holds most weights."""
    found = [
        module
        for module in decoder.modules()
        if isinstance(module, nn.ModuleList) and len(module) == info.num_layers
    ]
    if not found:
        raise UnsupportedError(
            f"{info.name} ({info.model_type}) has no list of {info.num_layers} layers to take "
            f"features from"
        )
    return max(found, key=lambda layers: sum(p.numel() for p in layers.parameters()))
