"""One cycle as JSON: what was drafted from which candidates, and what the target thought of it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from blockdraft.decoding.choose_tokens import draws
from blockdraft.decoding.row import Row
from blockdraft.evaluation.watch_cycles import SeenLattice
from blockdraft.sampling.adjust import AdjustRow, adjust_logits
from blockdraft.sampling.streams import Purpose
from blockdraft.sampling.warp import probabilities
from blockdraft.types import Cycle, Proposal

#: The target's likeliest tokens that are kept of each verified row.
NUM_SAID = 5

_MOST_STEPS = 32767  # int16


@dataclass(frozen=True)
class SeenCycle:
    """What was seen of the last cycle of a row.

    Attributes:
        before: tokens of the row, prompt included, as the cycle began; the last one is the anchor.
        proposal, lattice: of the drafter; None where none was asked.
        logits: of the pass over the anchor and its drafts.
    """

    before: Sequence[int]
    cycle: Cycle
    proposal: Proposal | None
    lattice: SeenLattice | None
    logits: Float[Tensor, "t v"]

    @property
    def draft_ids(self) -> list[int]:
        """Drafted tokens that were verified."""
        if self.proposal is None:
            return []
        ids: list[int] = self.proposal.ids[0, : self.cycle.drafted_len].tolist()
        return ids


def cycle_json(row: Row, seen: SeenCycle) -> dict[str, Any]:
    """Keys of a cycle (`docs/reference/trace_json.md`), less the text."""
    drafts, num = seen.draft_ids, seen.cycle.drafted_len
    p = _law(row, seen)
    return {
        "start": len(seen.before) - row.prompt_len,
        "anchor": seen.before[-1],
        "drafted": drafts,
        "accepted": seen.cycle.accepted_len,
        "committed": list(seen.cycle.committed_ids),
        "why": _why(seen.cycle),
        "ended": _ended(row, seen.cycle),
        "p": None if p is None else _short(p[range(num), drafts].tolist()),
        "q": _q_of_drafts(seen, drafts),
        "u": None if row.params.is_greedy else _coins(row, seen, num),
        "says": [] if p is None else _said(p),
        **_lattice_json(seen.lattice, p, num),
    }


def _law(row: Row, seen: SeenCycle) -> Float[Tensor, "t v"] | None:
    """The target's law after 0, 1, .. drafts; for a greedy row the softmax, which tells more.

    None where the pass gave no numbers, so that nothing was committed.
    """
    if not seen.cycle.committed_ids:
        return None
    logits = seen.logits[: seen.cycle.drafted_len + 1]
    if row.params.has_adjustments:
        drafts = seen.draft_ids
        about = AdjustRow(row.params, row.prompt_len, seen.before, drafts, tuple(row.stop_ids))
        logits = adjust_logits(logits[None], [about])[0]
    if row.params.is_greedy:
        return torch.softmax(logits.float(), -1)
    return probabilities(logits, [row.params] * len(logits)).float()


def _said(p: Float[Tensor, "t v"]) -> list[list[list[float]]]:
    """The likeliest tokens of each row with their probabilities."""
    best = p.topk(min(NUM_SAID, p.shape[-1]))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[list(pair) for pair in zip(ids, _short(p), strict=True)] for ids, p in rows]


def _why(cycle: Cycle) -> str:
    """Why no further draft was taken."""
    if not cycle.committed_ids:
        return "doubted"
    if not cycle.drafted_len:
        return "nothing_drafted"
    if len(cycle.committed_ids) <= cycle.accepted_len:
        return "cut"
    return "all_accepted" if cycle.accepted_len == cycle.drafted_len else "rejected"


def _ended(row: Row, cycle: Cycle) -> str | None:
    """What ended the answer in this cycle; None if it goes on."""
    if row.finish_reason != "stop":
        return row.finish_reason
    return "end_token" if cycle.committed_ids[-1] in row.stop_ids else "stop_string"


def _q_of_drafts(seen: SeenCycle, drafts: Sequence[int]) -> list[float] | None:
    """q of each draft; None where each q is a point mass."""
    proposal = seen.proposal
    if proposal is None or proposal.q_ids is None or proposal.q_probs is None:
        return None
    wanted = torch.tensor(drafts)[:, None]
    support, masses = proposal.q_ids[0, : len(drafts)].cpu(), proposal.q_probs[0, : len(drafts)]
    return _short((masses.cpu() * (support == wanted)).sum(-1).tolist())


def _coins(row: Row, seen: SeenCycle, num: int) -> list[float]:
    """The coins that accepted or refused: drawn again, since they depend on their place alone."""
    positions = np.array([[len(seen.before) + j for j in range(num)]], dtype=np.int64)
    return _short(draws([row], positions, Purpose.ACCEPT)[0].tolist())


def _lattice_json(
    lattice: SeenLattice | None, p: Float[Tensor, "t v"] | None, num: int
) -> dict[str, Any]:
    if lattice is None or not num:
        return {"slots": None, "pair": None}
    slots = [
        {
            "ids": ids.tolist(),
            "unary": _short(unary.tolist(), 5),
            "p": None if p is None else _short(p[j, ids].tolist()),
        }
        for j, (ids, unary) in enumerate(zip(lattice.ids[:num], lattice.unary[:num], strict=True))
    ]
    return {"slots": slots, "pair": None if lattice.pair is None else pack(lattice.pair[:num])}


def pack(pair: Float32[Tensor, "k c c"]) -> dict[str, Any]:
    """Scores as whole steps of one size, little-endian int16 in base64, slot by slot.

    Written out as numbers they would be nine tenths of a trace; half a step is the error.
    """
    step = float(pair.abs().max()) / _MOST_STEPS or 1.0
    steps = (pair.double() / step).round().numpy().astype("<i2")
    return {"step": step, "data": base64.b64encode(steps.tobytes()).decode()}


def _short(values: Sequence[float], digits: int = 3) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def token_ids_of(cycle: dict[str, Any]) -> set[int]:
    """Every token that a cycle names."""
    slots: list[dict[str, Any]] = cycle["slots"] or []
    named = {cycle["anchor"], *cycle["drafted"], *cycle["committed"]}
    named.update(token_id for slot in slots for token_id in slot["ids"])
    named.update(token_id for row in cycle["says"] for token_id, _ in row)
    return named
