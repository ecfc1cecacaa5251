"""The cycle: draft, select, verify, accept, commit. Plain decoding is the same with no drafter.

    state    committed tokens x_0..x_a; target cache and features for 0..a-1; x_a is the anchor
    draft    block [x_a, MASK, .., MASK] at positions a..a+K: one pass of the drafter
    select   a path y_1..y_K through the candidates, and the exact q it was drawn from
    verify   one pass of the target over [x_a, y_1..y_m]
    accept   the longest accepted prefix A, then one correction or bonus token
    commit   A+1 tokens, cut at the first stop; cache to a+A+1; A+1 feature rows to the drafter

Source: DFlash (arXiv 2602.06036), rejection sampling (arXiv 2211.17192).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from blockdraft.decoding.choose_ragged import can_be_ragged
from blockdraft.decoding.choose_tokens import (
    best_is_enough,
    choose_tokens,
    draws,
    record_logprobs,
)
from blockdraft.decoding.load import note_cycle, pass_kind, plan_cycle, planned_batch
from blockdraft.decoding.row import Row
from blockdraft.decoding.state import DecodeState, anchors
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.sampling.streams import Purpose
from blockdraft.targets.base import PassOutput, RowBatch
from blockdraft.types import Cycle, Proposal, Verdict
from blockdraft.verification.budget import DraftBudget, PassKind


@torch.inference_mode()
def cycle(state: DecodeState) -> None:
    """Advance every row by at least one token. Rows must not be empty or finished."""
    mark = state.clock.mark()
    proposal = propose(state)
    output = verify(state, proposal)
    verdict, faults = choose_tokens(state.rows, proposal, output)
    for slot, row in enumerate(state.rows):
        fault = faults.get(slot)
        is_met = fault is not None and fault.at == verdict.accepted_len[slot]
        # A draft may have caused it, and a draft must change nothing: the next pass goes without.
        row.is_doubted = is_met and proposal.lens[slot] > 0
        if fault is not None and is_met and not row.is_doubted:
            row.fail(fault.message)
    commit(state, proposal, verdict, output, frozenset(faults))
    if state.budget is not None and state.planned is not None:
        note_cycle(state.budget, state.planned, state.rows, state.clock.since(mark))


def propose(state: DecodeState) -> Proposal:
    """Draft and select for every row; rows near their limit ask for less, or for nothing."""
    state.planned = None
    if state.drafter is None or state.context is None:
        return nothing_drafted(len(state.rows))
    if rests(state):
        return nothing_drafted(len(state.rows))
    batch = draft_batch(state.rows, state.drafter.num_draft_tokens, state.target.device)
    if state.budget is not None and any(batch.max_lens):
        batch = within_budget(state, state.budget, batch)
    if not any(batch.max_lens):
        return batch.found or nothing_drafted(len(state.rows))
    batch = with_uniforms(state.rows, batch, state.drafter.num_draft_tokens)
    with state.clock.phase("draft"):
        drafted = state.drafter.draft(state.context, batch)
    with state.clock.phase("select"):
        return state.drafter.select(drafted, batch)


def rests(state: DecodeState) -> bool:
    """Whether the load leaves no room for drafts, so that none are looked for."""
    if state.budget is None or state.drafter is None:
        return False
    if any(row.has_fixed_drafts for row in state.rows):
        return False
    return state.budget.rests(len(state.rows), kind_of(state, state.drafter))


def kind_of(state: DecodeState, drafter: Drafter) -> PassKind:
    """What else the time of a pass depends on."""
    return pass_kind(drafter, state.target.computes_padding, not best_is_enough(state.rows))


def within_budget(state: DecodeState, budget: DraftBudget, batch: DraftBatch) -> DraftBatch:
    """The batch with what the load leaves of its lengths; remembers the plan, to learn from it."""
    assert state.drafter is not None
    assert state.context is not None
    with state.clock.phase("draft"):
        found = state.drafter.look_up(state.context, batch)
    state.planned = plan_cycle(budget, state.rows, batch, found, kind_of(state, state.drafter))
    return planned_batch(batch, found, state.planned.lens)


def nothing_drafted(num_rows: int) -> Proposal:
    """The proposal of plain decoding."""
    return Proposal(torch.zeros(num_rows, 0, dtype=torch.long), (0,) * num_rows)


def draft_batch(rows: list[Row], num_draft_tokens: int, device: torch.device) -> DraftBatch:
    """What a drafter is told of the rows, without uniforms."""
    positions = tuple(len(row.token_ids) - 1 for row in rows)
    return DraftBatch(
        anchor_ids=torch.tensor(anchors(rows), device=device),
        positions=positions,
        token_ids=[row.token_ids for row in rows],
        max_lens=tuple(
            0 if row.is_doubted else min(num_draft_tokens, row.remaining_len - 1) for row in rows
        ),
        temperatures=tuple(row.params.temperature for row in rows),
    )


def with_uniforms(rows: list[Row], batch: DraftBatch, num_draft_tokens: int) -> DraftBatch:
    """The batch with the numbers that sampled drafts are drawn with."""
    if all(row.params.is_greedy for row in rows):
        return batch
    steps = np.array(batch.positions)[:, None] + np.arange(1, num_draft_tokens + 1)
    uniforms = draws(rows, steps, Purpose.DRAFT).to(batch.anchor_ids.device)
    return dataclasses.replace(batch, uniforms=uniforms)


def verify(state: DecodeState, proposal: Proposal) -> PassOutput:
    """One pass of the target over each anchor and its drafts."""
    # One tensor from plain numbers: every operation between two passes starts with cold caches.
    width = max(proposal.lens)
    drafts = proposal.ids.tolist()
    rows = [
        # What stands behind a row's drafts may be anything: the padding is a token.
        [anchor, *ids[:length], *[anchor] * (width - length)]
        for anchor, ids, length in zip(anchors(state.rows), drafts, proposal.lens, strict=True)
    ]
    ids = torch.tensor(rows, device=state.target.device)
    batch = RowBatch(
        ids,
        tuple(1 + length for length in proposal.lens),
        layer_ids=state.layer_ids,
        wants_best=best_is_enough(state.rows),
        takes_ragged=can_be_ragged(state.rows, state.target.info.vocab_size),
    )
    with state.clock.phase("verify"):
        return state.target.forward(state.cache, batch)


def commit(
    state: DecodeState,
    proposal: Proposal,
    verdict: Verdict,
    output: PassOutput,
    faulty: frozenset[int] = frozenset(),
) -> None:
    """Write the verdict down: tokens, counters, cache lengths, features for the drafter.

    Rows that are `faulty` have left numbers in the cache that no later pass may read.
    """
    drafts = proposal.ids.tolist()
    starts = [len(row.token_ids) - 1 for row in state.rows]
    lens = [0] * len(state.rows)
    alarm = None if state.drafter is None else state.drafter.alarm
    for i, row in enumerate(state.rows):
        if row.finish_reason != "error":
            accepted = verdict.accepted_len[i]
            # Behind the drafts of a doubted row no token could be chosen.
            chosen = [] if row.is_doubted else [verdict.next_ids[i]]
            kept = row.commit([*drafts[i][:accepted], *chosen])
            row.cycles.append(Cycle(proposal.lens[i], min(accepted, len(kept)), tuple(kept)))
            if alarm is not None and i not in proposal.looked_up and not row.is_doubted:
                alarm.note(proposal.lens[i], accepted)
            lens[i] = 0 if row.is_finished else len(kept)
            state.record(i, output.features, i, len(kept))
            record_logprobs(row, output.logits, i, kept)
        if i in faulty:
            state.cache.clear_after(i, len(row.token_ids) - 1)
        else:
            state.cache.crop(i, len(row.token_ids) - 1)
    if state.context is not None and any(lens):
        with state.clock.phase("draft"):
            state.context.append(output.features, 0, starts, lens)
