"""From the bytes of a GGUF tensor to floats."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from torch import Tensor

from blockdraft.errors import UnsupportedError
from blockdraft.targets.sources.gguf_header import TensorPlace

_PLAIN = {
    Quant.F64: torch.float64,
    Quant.F32: torch.float32,
    Quant.F16: torch.float16,
    Quant.BF16: torch.bfloat16,
}


def read_tensor(path: Path, name: str, place: TensorPlace) -> Tensor:
    """One tensor, in the file's float type; quantised ones as float32.

    Raises: UnsupportedError for a type that cannot be dequantised (integers, rare types).
    """
    raw = np.fromfile(path, np.uint8, place.num_bytes, offset=place.offset)
    if place.quant in _PLAIN:
        return torch.from_numpy(raw).view(_PLAIN[place.quant]).view(place.shape)
    try:
        floats = gguf.dequantize(raw.reshape(*place.shape[:-1], -1), place.quant)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"{path}: {name} is {place.quant.name}, which cannot be dequantised"
        ) from error
    return torch.from_numpy(np.ascontiguousarray(floats, np.float32))
