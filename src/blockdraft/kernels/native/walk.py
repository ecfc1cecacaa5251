"""The greedy walk of DFlash 2's candidate selector, in one native call."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from functools import cache
from typing import Any

import torch
from jaxtyping import BFloat16, Bool, Float32, Int64
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels.native.library import check_status, load


@cache
def _function() -> Any:
    function = load().bd_walk_greedy
    function.restype, function.argtypes = c_int, (*[c_void_p] * 7, *[c_int] * 4, *[c_void_p] * 2)
    return function


def walk_greedy(
    gate: Float32[Tensor, "b k r"],
    values: Float32[Tensor, "b k c"],
    rows: Int64[Tensor, "b k c"],
    anchors: Int64[Tensor, "b"],
    predecessors: BFloat16[Tensor, "p r"],
    successors: BFloat16[Tensor, "e r"],
    token_ids: Int64[Tensor, "e"] | None = None,
) -> tuple[Int64[Tensor, "b k"], Bool[Tensor, "b"]]:
    """The best candidate after each chosen one; the first on ties.

    Scores are values + <predecessors[previous] * gate, successors[candidate]> in float32; only
    those on the way are made. Greedy, so that looking at them alone biases nothing.

    Args:
        gate: projected hidden state of each slot.
        values, rows: candidates of each slot; rows are those of the codebooks.
        anchors: row of the token before slot 0, in `predecessors`.
        token_ids: token of each row; None if the rows are token ids.
    Returns: the tokens of the path, and whether every score of a row on it was finite.
    Raises: ConfigError if a tensor is not contiguous or not of its dtype.
    """
    b, k, c = rows.shape
    rank = gate.shape[-1]
    for name, tensor, dtype in (
        ("gate", gate, torch.float32),
        ("values", values, torch.float32),
        ("rows", rows, torch.int64),
        ("anchors", anchors, torch.int64),
        ("predecessors", predecessors, torch.bfloat16),
        ("successors", successors, torch.bfloat16),
        ("token_ids", rows if token_ids is None else token_ids, torch.int64),
    ):
        if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ConfigError(f"{name} must be contiguous {dtype} on the CPU, not {tensor.dtype}")
    path = torch.empty(b, k, dtype=torch.int64)
    finite = torch.empty(b, dtype=torch.bool)
    pointers = (gate, values, rows, anchors, predecessors, successors)
    check_status(
        _function()(
            *(tensor.data_ptr() for tensor in pointers),
            None if token_ids is None else token_ids.data_ptr(),
            b,
            k,
            c,
            rank,
            path.data_ptr(),
            finite.data_ptr(),
        )
    )
    return path, finite
