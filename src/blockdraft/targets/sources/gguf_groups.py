"""Quantised tensors of a GGUF file as they are: integers, scales and offsets of 32 weights each.

The types of 32 weights with a half as scale (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0), whose dequantised
numbers `GroupedWeight` gives exactly. Larger super-blocks (Q4_K and so on) have scales of scales
and are only read dequantised.

Source of the layouts: the GGUF format, github.com/ggml-org/ggml (docs/gguf.md, ggml-common.h).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from numpy.typing import NDArray

from blockdraft.kernels.grouped_weight import GROUP, GroupedWeight
from blockdraft.targets.sources.gguf_header import TensorPlace


class _Layout(NamedTuple):
    """A block: the scale, then the offset if it has one, the fifth bits, and the integers."""

    bits: int
    has_offset: bool
    centre: int  # subtracted from the integer where there is no offset


_LAYOUTS = {
    Quant.Q4_0: _Layout(4, False, 8),
    Quant.Q4_1: _Layout(4, True, 0),
    Quant.Q5_0: _Layout(5, False, 16),
    Quant.Q5_1: _Layout(5, True, 0),
    Quant.Q8_0: _Layout(8, False, 128),
}


def is_grouped(place: TensorPlace) -> bool:
    """Whether a tensor is a matrix of one of these types."""
    return place.quant in _LAYOUTS and len(place.shape) == 2


def read_grouped(path: Path, place: TensorPlace) -> GroupedWeight | None:
    """A matrix without dequantising it; None if a scale or an offset is no number a half holds."""
    layout = _LAYOUTS[place.quant]
    raw = np.fromfile(path, np.uint8, place.num_bytes, offset=place.offset)
    blocks = raw.reshape(place.shape[0], place.shape[1] // GROUP, -1)
    scales = _halves(blocks[..., :2])
    at = 4 if layout.has_offset else 2
    # A small integer times a half is exact, and a half itself unless it leaves the halves' range.
    offsets = _halves(blocks[..., 2:4]) if layout.has_offset else scales * -layout.centre
    integers = _integers(blocks[..., at:], layout.bits)
    weight = GroupedWeight(
        torch.from_numpy(integers.reshape(place.shape)),
        scales,
        offsets,
        4 if layout.bits == 4 else 8,
    )
    return weight if weight.is_finite else None


def _halves(raw: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(raw)).view(torch.float16)[..., 0]


def _integers(body: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Integers from 0 on, in the order of the inputs."""
    if bits == 8:
        return body ^ np.uint8(128)  # signed bytes, from -128 on
    low = body[..., -16:]
    integers = np.concatenate([low & 15, low >> 4], axis=-1)
    if bits == 5:
        integers |= np.unpackbits(body[..., :4], axis=-1, bitorder="little") << np.uint8(4)
    return integers
