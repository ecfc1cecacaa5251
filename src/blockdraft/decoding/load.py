"""What the draft budget is told of a cycle: the rows before it, and what came of them after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft.decoding.clock import Timing
from blockdraft.decoding.row import Row
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.types import Proposal
from blockdraft.verification.budget import DraftBudget, PassKind, RowLoad, RowOutcome
from blockdraft.verification.draft_lens import Lens


@dataclass(frozen=True)
class PlannedCycle:
    """What was decided before a pass, to be told of it afterwards."""

    kind: PassKind
    loads: Sequence[RowLoad]
    num_cycles: Sequence[int]
    lens: Lens


def plan_cycle(
    budget: DraftBudget,
    rows: Sequence[Row],
    batch: DraftBatch,
    found: Proposal | None,
    kind: PassKind,
) -> PlannedCycle:
    """Ask the budget for the lengths of a cycle.

    Args:
        batch: its `max_lens` are what the rows have room for.
        found: what the texts themselves go on with.
    """
    ids = [] if found is None else found.ids.tolist()
    loads = [
        RowLoad(
            limit=batch.max_lens[i],
            is_greedy=row.params.is_greedy,
            is_fixed=row.has_fixed_drafts,
            acceptance=row.acceptance,
            found_ids=ids[i][: found.lens[i]] if found is not None else (),
            match_len=found.match_lens[i] if found is not None else 0,
        )
        for i, row in enumerate(rows)
    ]
    return PlannedCycle(kind, loads, [len(row.cycles) for row in rows], budget.plan(loads, kind))


def pass_kind(drafter: Drafter, is_padded: bool, wants_logits: bool) -> PassKind:
    """What the lengths of a cycle depend on beside its rows."""
    return PassKind(
        num_draft_tokens=drafter.num_draft_tokens if drafter.has_model else 0,
        is_padded=is_padded,
        wants_logits=wants_logits,
    )


def planned_batch(batch: DraftBatch, found: Proposal | None, lens: Lens) -> DraftBatch:
    """The batch with lengths as planned: of what was found, and of what is to be drafted."""
    if found is not None:
        kept = frozenset(i for i in found.looked_up if lens.looked_up[i])
        found = dataclasses.replace(found, lens=lens.looked_up, looked_up=kept)
    return dataclasses.replace(batch, max_lens=lens.drafted, found=found)


def note_cycle(
    budget: DraftBudget, planned: PlannedCycle, rows: Sequence[Row], timing: Timing
) -> None:
    """Tell the budget what became of its plan."""
    draft_s = timing.draft_s + timing.select_s
    budget.note(
        planned.loads,
        planned.kind,
        planned.lens,
        [_outcome(row, n) for row, n in zip(rows, planned.num_cycles, strict=True)],
        pass_ms=1e3 * (timing.total_s - draft_s),
        draft_ms=1e3 * draft_s,
    )


def _outcome(row: Row, num_cycles: int) -> RowOutcome:
    if len(row.cycles) == num_cycles:  # it failed
        return RowOutcome(0, 0, ())
    cycle = row.cycles[-1]
    return RowOutcome(cycle.drafted_len, cycle.accepted_len, cycle.committed_ids)
