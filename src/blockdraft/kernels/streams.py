"""The random streams, by native code where the kernels are in use: the same bits either way."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int, c_void_p
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float64
from torch import Tensor

from blockdraft.kernels.native.library import is_loaded, load
from blockdraft.sampling import streams
from blockdraft.sampling.streams import Purpose


@cache
def _function() -> Any:
    function = load().bd_uniforms
    function.restype = None
    function.argtypes = (*[c_void_p] * 3, c_int, c_int, c_void_p, c_int, c_void_p)
    return function


def uniforms_for(
    seeds: Sequence[int],
    stream_keys: Sequence[int],
    positions: npt.NDArray[np.int64],
    purposes: Sequence[Purpose],
) -> Float64[Tensor, "p b n"]:
    """`sampling.streams.uniforms_for`; numpy needs a hundred small calls for it."""
    is_plain = positions.dtype == np.int64 and positions.flags.c_contiguous
    if not is_loaded() or not is_plain:
        return streams.uniforms_for(seeds, stream_keys, positions, purposes)
    streams.check_positions(seeds, stream_keys, positions)
    out = torch.empty(len(purposes), *positions.shape, dtype=torch.float64)
    words = np.array(seeds, dtype=np.uint64), np.array(stream_keys, dtype=np.uint64)
    kinds = np.array(purposes, dtype=np.uint32)
    _function()(
        *(array.ctypes.data for array in (*words, positions)),
        *positions.shape,
        kinds.ctypes.data,
        len(kinds),
        out.data_ptr(),
    )
    return out
