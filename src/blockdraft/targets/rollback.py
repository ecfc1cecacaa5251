"""Which transformers models can take rows back after a rejection; the others are refused.

A layer with a recurrent state (Mamba, linear attention, a running convolution) has folded the
rejected rows into its state and cannot take them out again. Such a model would go on from a state
that no longer is that of the committed text, and the drafter would change the output.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from blockdraft.errors import NumericsError, UnsupportedError

#: Layers that keep keys and values per row and nothing else.
_PLAIN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


def check_can_roll_back(name: str, model_class: Any, config: Any) -> None:
    """Refuse, before any weight is read, a model whose layers keep more than keys and values.

    Raises: UnsupportedError naming the model and the reason.
    """
    reason = _reason(model_class, config)
    if reason is not None:
        raise UnsupportedError(
            f"{name} ({config.model_type}) cannot be a target: {reason}, so it cannot roll back "
            f"after a rejected draft"
        )


def _reason(model_class: Any, config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder model"
    if model_class._is_stateful:
        return "it keeps a recurrent state"
    if "cache" not in inspect.signature(model_class.forward).parameters:
        return "it does not keep its past in a key-value cache"
    try:
        layers = DynamicCache(config=config).layers
    except KeyError as error:
        return f"it has layers of type {error}"
    for index, layer in enumerate(layers):
        if type(layer) not in _PLAIN_LAYERS:
            return f"its layer {index} keeps a state of kind {type(layer).__name__}"
    return None


def check_by_trial(name: str, run: Callable[[Any, list[int]], Tensor], vocab_size: int) -> None:
    """Roll back once and compare: for whatever keeps a state that its config does not tell.

    Args:
        name: of the model, for the message.
        run: feeds token ids to a transformers cache and returns the last row's logits.
        vocab_size: ids below it are fed.

    Raises:
        UnsupportedError: the logits after a rollback are not those without it.
        NumericsError: the logits are not finite.
    """
    ids = [i % vocab_size for i in (3, 7, 11, 5, 2, 13, 17)]
    straight, rolled = DynamicCache(), DynamicCache()
    run(straight, ids[:3])
    run(rolled, ids[:3])
    run(rolled, ids[4:])
    rolled.crop(-len(ids[4:]))
    expected, found = run(straight, ids[3:4]).float(), run(rolled, ids[3:4]).float()
    scale = float(expected.abs().max())
    if not math.isfinite(scale):
        raise NumericsError(f"{name} gives logits that are not finite; try --dtype float32")
    # Both passes have the same shapes, so a rolled back cache gives the same bits nearly always.
    if not float((found - expected).abs().max()) <= 1e-3 * scale:
        raise UnsupportedError(
            f"{name} cannot be a target: its logits differ after rows were taken back from its "
            f"cache, so it cannot roll back after a rejected draft"
        )
