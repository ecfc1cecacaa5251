"""The walks of DFlash 2's candidate selector, each in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import BFloat16, Float32, Float64, Int64
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.library import check_status, load


@dataclass(frozen=True)
class WalkInput:
    """Slots with their candidates, and the codebooks that score an edge.

    A candidate's score after `previous` is values + <predecessors[previous] * gate,
    successors[candidate]> in float32; only those on the way are made.

    Attributes:
        gate: projected hidden state of each slot.
        values, rows: candidates of each slot; rows are those of the codebooks.
        anchors: row of the token before slot 0, in `predecessors`.
        token_ids: token of each row; None if the rows are token ids.
    """

    gate: Float32[Tensor, "b k r"]
    values: Float32[Tensor, "b k c"]
    rows: Int64[Tensor, "b k c"]
    anchors: Int64[Tensor, "b"]
    predecessors: BFloat16[Tensor, "p r"]
    successors: BFloat16[Tensor, "e r"]
    token_ids: Int64[Tensor, "e"] | None = None


@cache
def _function() -> Any:
    function = load().bd_run_walk
    function.restype, function.argtypes = c_int, (c_int, POINTER(structs.WalkStruct))
    return function


def walk_greedy(given: WalkInput) -> tuple[Int64[Tensor, "b k"], list[int]]:
    """The best candidate after each chosen one; the first on ties.

    Returns: the tokens of the path, and of each row how many slots come before the first with a
        score on the way that is not finite: k if all are.
    Raises: ConfigError if a tensor is not contiguous or not of its dtype.
    """
    return _run(given, "portable", {})


def walk_sampled(
    given: WalkInput,
    temperatures: Sequence[float | None],
    uniforms: Float64[Tensor, "b k"],
    isa: str,
) -> tuple[Int64[Tensor, "b k"], Float32[Tensor, "b k c"], list[int]]:
    """Draw a path: each candidate from softmax(score / temperature) given its predecessor.

    Args:
        temperatures: of each row; None walks greedily, with a one-hot q.
        uniforms: one draw in [0, 1) for each slot.
    Returns: the tokens of the path; the q that each was really drawn from, on the slot's
        candidates; and of each row how many slots come before the first whose scores are not all
        finite. That depends on the drafts before a slot alone: to use no more is exact.
    Raises: ConfigError as `walk_greedy`.
    """
    scales = torch.tensor([t or 0.0 for t in temperatures], dtype=torch.float64)
    if uniforms.shape != given.rows.shape[:2] or len(scales) != len(given.rows):
        raise ConfigError(f"uniforms {tuple(uniforms.shape)} for rows {tuple(given.rows.shape)}")
    q = torch.empty(given.rows.shape, dtype=torch.float32)
    drawn = {"temperatures": scales, "uniforms": uniforms.contiguous(), "q": q}
    path, finite_lens = _run(given, isa, drawn)
    return path, q, finite_lens


def _run(given: WalkInput, isa: str, more: dict[str, Tensor]) -> tuple[Tensor, list[int]]:
    b, k, c = given.rows.shape
    tensors = {
        "gate": _fit("gate", given.gate, torch.float32),
        "values": _fit("values", given.values, torch.float32),
        "candidate_rows": _fit("rows", given.rows, torch.int64),
        "anchors": _fit("anchors", given.anchors, torch.int64),
        "predecessors": _fit("predecessors", given.predecessors, torch.bfloat16),
        "successors": _fit("successors", given.successors, torch.bfloat16),
        "path": torch.empty(b, k, dtype=torch.int64),
        "finite_lens": torch.empty(b, dtype=torch.int32),
        **more,
    }
    if given.token_ids is not None:
        tensors["token_ids"] = _fit("token_ids", given.token_ids, torch.int64)
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    sizes = {"num_rows": b, "num_slots": k, "num_candidates": c, "rank": given.gate.shape[-1]}
    walk = structs.WalkStruct(**pointers, **sizes)
    check_status(_function()(structs.ISAS.index(isa), ctypes.byref(walk)))
    finite_lens: list[int] = tensors["finite_lens"].tolist()
    return tensors["path"], finite_lens


def _fit(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ConfigError(f"{name} must be contiguous {dtype} on the CPU, not {tensor.dtype}")
    return tensor
