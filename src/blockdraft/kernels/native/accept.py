"""Rejection sampling out of logits, in one native call: no vector of probabilities is ever made.

For a temperature above 0 and nothing else that shapes the law. Weights are float32, sums float64:
laws agree with those of `sampling.warp` to float32 rounding, not bit for bit. Within one
instruction set a sequence's result depends on its own rows alone.

`verification.rejection.accept_sampled` is the reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_void_p
from functools import cache
from typing import Any

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.library import check_status, load

_WRONG = {
    -3: "p has no probability mass (or NaN) in a row that a token is drawn from",
    -4: "a draft has no probability under the q it is said to be drawn from",
}


@cache
def _functions() -> tuple[Any, Any, Any]:
    masses, accept = load().bd_token_masses, load().bd_accept_sampled
    bad = load().bd_nonfinite_rows
    head = (c_int, c_void_p, c_int, c_void_p, c_void_p, c_int)
    masses.restype, masses.argtypes = c_int, (*head, *[c_void_p] * 2)
    accept.restype, accept.argtypes = c_int, (*head, POINTER(structs.SampledStruct))
    bad.restype, bad.argtypes = c_int, (c_int, c_void_p, c_int, c_int, c_void_p)
    return masses, accept, bad


def accept_rows(
    logits: Float32[Tensor, "n v"],
    rows: Sequence[int],
    temperatures: Sequence[float],
    draft_ids: Int64[Tensor, "b k"],
    lens: Sequence[int],
    q_ids: Int64[Tensor, "b k c"] | None,
    q_probs: Float32[Tensor, "b k c"] | None,
    u_accept: Float64[Tensor, "b k"],
    u_residual: Float64[Tensor, "b"],
    u_bonus: Float64[Tensor, "b"],
    isa: str,
) -> tuple[list[int], list[int]]:
    """Accepted drafts of each sequence, and the token that follows them.

    The rule, and what the arguments mean, is that of `accept_sampled`. Rows behind the first
    refusal are not looked at.

    Args:
        logits, rows: row rows[i] + j follows j drafts of sequence i.
        temperatures: of each sequence, above 0.
    Raises: ValueError if a draft has q = 0, or a row that is looked at NaN or +inf or nothing
        but -inf; ConfigError if a tensor is of another dtype or shape, or not on the CPU; UserError
        if a number is out of range.
    """
    b, k = draft_ids.shape
    if len(lens) != b or len(rows) != b or (q_ids is None) != (q_probs is None):
        raise ConfigError(f"{b} drafts, {len(lens)} lengths, {len(rows)} rows; or half a q")
    lengths = torch.tensor(lens, dtype=torch.int32)
    results = torch.empty(2, b, dtype=torch.int64)
    kept = {
        "lens": lengths,
        "draft_ids": _fit(draft_ids, torch.int64, (b, k)),
        "coins": _fit(u_accept, torch.float64, (b, k)),
        "residuals": _fit(u_residual, torch.float64, (b,)),
        "bonuses": _fit(u_bonus, torch.float64, (b,)),
        "accepted": results[0],
        "next_ids": results[1],
    }
    num_support = 0
    if q_ids is not None and q_probs is not None:
        num_support = q_ids.shape[-1]
        kept["q_ids"] = _fit(q_ids, torch.int64, (b, k, num_support))
        kept["q_masses"] = _fit(q_probs, torch.float32, (b, k, num_support))
    pointers = {name: tensor.data_ptr() for name, tensor in kept.items()}
    sampled = structs.SampledStruct(**pointers, num_slots=k, num_support=num_support)
    _run(1, (logits, rows, temperatures, isa), lens, ctypes.byref(sampled))
    accepted, next_ids = results.tolist()
    return accepted, next_ids


def token_masses(
    logits: Float32[Tensor, "n v"],
    rows: Sequence[int],
    temperatures: Sequence[float],
    ids: Int64[Tensor, "m"],
    isa: str,
) -> Float64[Tensor, "m"]:
    """p as `accept_rows` sees it: of one id in each of some rows. Raises: as `accept_rows`."""
    ids = _fit(ids, torch.int64, (len(rows),))
    masses = torch.empty(len(rows), dtype=torch.float64)
    _run(0, (logits, rows, temperatures, isa), [0] * len(rows), ids.data_ptr(), masses.data_ptr())
    return masses


def _run(
    which: int,
    about: tuple[Tensor, Sequence[int], Sequence[float], str],
    lens: Sequence[int],
    *rest: Any,
) -> None:
    """One of `_functions`, on some rows of logits and the `lens` rows behind each."""
    logits, rows, temperatures, isa = about
    if logits.ndim != 2 or _fit(logits, torch.float32, logits.shape) is not logits:
        raise ConfigError(f"logits {tuple(logits.shape)} must be [n, v] and contiguous")
    ends = [row + n for row, n in zip(rows, lens, strict=True)]
    if rows and not 0 <= min(rows) <= max(ends) < len(logits):
        raise ConfigError(f"rows {list(rows)}, {list(lens)} behind; there are {len(logits)}")
    if len(temperatures) != len(rows):
        raise ConfigError(f"{len(temperatures)} temperatures for {len(rows)} rows")
    starts = torch.tensor(rows, dtype=torch.int64)
    scales = torch.tensor(temperatures, dtype=torch.float64)
    status = _functions()[which](
        structs.ISAS.index(isa),
        logits.data_ptr(),
        logits.shape[-1],
        starts.data_ptr(),
        scales.data_ptr(),
        len(rows),
        *rest,
    )
    if status in _WRONG:
        raise ValueError(_WRONG[status])
    check_status(status)


def nonfinite_rows(logits: Float32[Tensor, "n v"], isa: str) -> list[bool]:
    """Which rows no token can be drawn from, as `sampling.warp.nonfinite_rows`."""
    if _fit(logits, torch.float32, logits.shape) is not logits:
        raise ConfigError(f"logits {tuple(logits.shape)} must be contiguous")
    bad = torch.empty(len(logits), dtype=torch.bool)
    check_status(
        _functions()[2](
            structs.ISAS.index(isa), logits.data_ptr(), logits.shape[1], len(logits), bad.data_ptr()
        )
    )
    found: list[bool] = bad.tolist()
    return found


def _fit(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Contiguous, for the kernels to read; kept alive by the caller."""
    if tensor.dtype != dtype or tensor.shape != shape or tensor.device.type != "cpu":
        raise ConfigError(
            f"got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; it must be {dtype} of"
            f" shape {tuple(shape)} on the CPU"
        )
    return tensor.contiguous()
