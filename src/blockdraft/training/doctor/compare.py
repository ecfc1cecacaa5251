"""Where the two paths part: the first quantity that differs by more than rounding explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.training.doctor.findings import Finding, fault, ok
from blockdraft.training.doctor.paths import Rows
from blockdraft.types import Cycle

#: Relative distance of a final row that rounding explains, by the dtype of serving. A trained
#: drafter in bfloat16 shows 0.2 % in the middle.
_APART = {torch.float32: 0.01, torch.bfloat16: 0.05, torch.float16: 0.02}

#: Share of slots, choices or blocks that rounding may turn: near ties go either way.
_TURNED = {torch.float32: 0.01, torch.bfloat16: 0.05, torch.float16: 0.02}

#: So many are near ties whatever their share: a few blocks tell no share.
_TIES = {torch.float32: 0, torch.bfloat16: 2, torch.float16: 2}

#: Mean accepted tokens by which decoding may differ from what training predicts of the same blocks.
_FEWER = {torch.float32: 0.02, torch.bfloat16: 0.1, torch.float16: 0.05}

_REPORT = "the same weights give other numbers when they serve: please report it, with this output"


def compare_rows(
    trained: Rows, served: Rows, used: Tensor, dtype: torch.dtype
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings in order; what follows from a part that differs is not told.

    Args:
        used: slots that both paths computed [n, k].
    """
    findings, figures = [], {"num_blocks": len(used), "num_slots": int(used.sum())}
    for name, look in (("hidden", _hidden), ("candidates", _candidates), ("path", _path)):
        finding, more = look(trained, served, used, dtype)
        findings.append(finding)
        figures |= {f"{name}_{key}": value for key, value in more.items()}
        if finding.level == "fault":
            break
    return findings, figures


def _hidden(
    trained: Rows, served: Rows, used: Tensor, dtype: torch.dtype
) -> tuple[Finding, dict[str, Any]]:
    a, b = trained.hidden[used], served.hidden[used]
    if not bool(b.isfinite().all()):
        return fault(
            "hidden", f"serving in {_name(dtype)} gives numbers that are not finite", _DTYPE
        ), {}
    apart = (a - b).norm(dim=-1) / a.norm(dim=-1).clamp_min(1e-6)
    middle, most = float(apart.median()), float(apart.quantile(0.95))
    share = float((apart > _APART[dtype]).float().mean())
    figures = {"median": middle, "p95": most, "share_apart": share}
    what = f"final rows are {middle:.1%} apart (95 % of them below {most:.1%})"
    if share > _TURNED[dtype]:
        what = f"the paths part at the final rows: {share:.0%} of {len(a)} are more than"
        what += (
            f" {_APART[dtype]:.0%} apart, {middle:.1%} in the middle; {_places(apart, used, dtype)}"
        )
        return fault("hidden", what, _REPORT), figures
    return ok("hidden", what), figures


_DTYPE = "serve in float32 or bfloat16"


def _places(apart: Tensor, used: Tensor, dtype: torch.dtype) -> str:
    """Which slots differ most: a conv that leaks shows at the first, causality at all but one."""
    slots = used.nonzero()[:, 1]
    shares = [
        float((apart[slots == k] > _APART[dtype]).float().mean())
        for k in range(used.shape[1])
        if bool((slots == k).any())
    ]
    return "by slot " + ", ".join(f"{share:.0%}" for share in shares)


def _candidates(
    trained: Rows, served: Rows, used: Tensor, dtype: torch.dtype
) -> tuple[Finding, dict[str, Any]]:
    num = min(trained.candidates.shape[-1], served.candidates.shape[-1])
    a, b = trained.candidates[used][:, :num], served.candidates[used][:, :num]
    first = float((a[:, 0] == b[:, 0]).float().mean())
    same = float((a[:, :, None] == b[:, None]).any(-1).float().mean())
    figures = {"best_agree": first, "shared": same}
    what = f"{first:.1%} of the best candidates and {same:.1%} of all {num} agree"
    if min(first, same) < 1 - _TURNED[dtype]:
        cure = "look at the head: multiplier, soft-cap, draft vocabulary"
        return fault("candidates", f"the paths part at the candidates: only {what}", cure), figures
    return ok("candidates", what), figures


def _path(
    trained: Rows, served: Rows, used: Tensor, dtype: torch.dtype
) -> tuple[Finding, dict[str, Any]]:
    """Choices after the same predecessors: as long as all earlier drafts are the true tokens."""
    slots = torch.arange(used.shape[1])
    reached = used & (slots <= torch.minimum(trained.accepted_len, served.accepted_len)[:, None])
    is_same = (trained.choices == served.choices)[reached]
    same = float(is_same.float().mean())
    figures = {
        "agree": same,
        "trained_len": 1 + float(trained.accepted_len.float().mean()),
        "served_len": 1 + float(served.accepted_len.float().mean()),
    }
    what = (
        f"{same:.1%} of the choices agree; {figures['trained_len']:.2f} tokens a block as trained,"
    )
    what += f" {figures['served_len']:.2f} as served"
    if same < 1 - _TURNED[dtype] and int((~is_same).sum()) > _TIES[dtype]:
        cure = "look at the selector: predecessors, codebooks, projection"
        return fault("path", f"the paths part at the choice: only {what}", cure), figures
    return ok("path", what), figures


def compare_loop(
    trained: Rows, cycles: Sequence[Sequence[Cycle]], dtype: torch.dtype
) -> tuple[Finding, dict[str, Any]]:
    """Does the decoding loop accept what training predicts of the very same blocks?"""
    flat = [cycle for each in cycles for cycle in each]
    room = torch.tensor([cycle.drafted_len for cycle in flat])
    predicted = torch.minimum(trained.accepted_len, room)
    really = torch.tensor([cycle.accepted_len for cycle in flat])
    figures = {
        "num_cycles": len(flat),
        "predicted_len": 1 + float(predicted.float().mean()),
        "decoded_len": 1 + float(really.float().mean()),
        "cycles_agree": float((predicted == really).float().mean()),
    }
    what = f"{figures['decoded_len']:.2f} tokens a cycle in {len(flat)} cycles; training predicts"
    what += (
        f" {figures['predicted_len']:.2f} of the same blocks ({figures['cycles_agree']:.1%} alike)"
    )
    is_apart = abs(figures["predicted_len"] - figures["decoded_len"]) > _FEWER[dtype]
    if is_apart and int((predicted != really).sum()) > _TIES[dtype]:
        cure = (
            "look at what differs above; if nothing does, the loop feeds the drafter other states"
        )
        return fault("loop", f"decoding does not do what training predicts: {what}", cure), figures
    return ok("loop", what), figures


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
