"""One cycle: what is cached, counted and drafted after every place of rejection."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from blockdraft.decoding.step import cycle
from blockdraft.drafters.base import DraftBatch
from blockdraft.targets.decoder import DecoderTarget
from blockdraft.types import Proposal, SamplingParams
from tests.decoding.loops import begun, row_of
from tests.fakes.drafting import (
    SparseDrafter,
    VariedDrafter,
    WatchedDrafter,
    fresh_drafts,
    random_drafter,
)
from tests.fakes.models import tiny_target
from tests.fakes.oracle import greedy_oracle, random_prompts
from tests.fakes.scripted import ScriptedDrafter, TableTarget, accept_first

PROMPTS = random_prompts([9, 1, 30])
PARAMS = SamplingParams(max_tokens=60)


@cache
def known(windows: tuple[int | None, ...] = (None,) * 4) -> tuple[DecoderTarget, dict[Any, Any]]:
    target = tiny_target(windows=windows, end_ids=())
    return target, {tuple(p): greedy_oracle(target, p, 60) for p in PROMPTS}


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 7])
@pytest.mark.parametrize("first", range(9))
def test_bc25_after_a_rejection_at_any_place(first: int, num_draft_tokens: int) -> None:
    """Two cycles in a row: cached rows are the committed tokens but for the anchor."""
    target, oracles = known()
    drafter = ScriptedDrafter(oracles, accept_first(first), num_draft_tokens, 160)
    rows = [row_of(p, PARAMS) for p in PROMPTS]
    state = begun(target, drafter, rows)
    accepted = min(first, num_draft_tokens)
    for num_cycles in (1, 2):
        cycle(state)
        state.check_integrity()
        length = 1 + num_cycles * (accepted + 1)
        for row, prompt in zip(rows, PROMPTS, strict=True):
            assert row.output_ids == list(oracles[tuple(prompt)][:length])
        assert state.cache.lens[:3] == [len(p) + length - 1 for p in PROMPTS]
        assert rows[0].cycles[-1].accepted_len == accepted
        assert rows[0].cycles[-1].drafted_len == num_draft_tokens


def test_bc25_sampled_cycles_leave_the_cache_in_step() -> None:
    """Every row is at another place of its block after a few cycles; tokens match the cache."""
    gen = torch.Generator().manual_seed(1)
    target = TableTarget(torch.randn(8, 8, 8, generator=gen))
    ids = torch.arange(8).expand(8, 8)
    drafter = SparseDrafter(ids, torch.softmax(torch.randn(8, 8, generator=gen), -1), 7)
    params = [SamplingParams(max_tokens=60, temperature=1.0, seed=s) for s in range(6)]
    rows = [row_of([s + 1, 2], one) for s, one in enumerate(params)]
    state = begun(target, drafter, rows)
    for _ in range(6):
        cycle(state)
        state.check_integrity()
        held: Any = state.cache
        assert [held.ids[i] for i in range(6)] == [row.token_ids[:-1] for row in rows]
    assert len({len(row.token_ids) for row in rows}) > 2


@pytest.mark.parametrize("block", [1, 2, 8])
def test_a_block_of_one_row_is_plain_decoding(block: int) -> None:
    target, oracles = known()
    drafter = None
    if block > 1:
        drafter = ScriptedDrafter(oracles, accept_first(block), block - 1, 160)
    row = row_of(PROMPTS[0], PARAMS)
    state = begun(target, drafter, [row])
    cycle(state)
    assert row.output_ids == list(oracles[tuple(PROMPTS[0])][: 1 + block])


WINDOWS: dict[str, dict[str, Any]] = {
    "full": {"windows": None},
    "16": {"windows": 16},
    "mixed": {"windows": (16, None)},
    "5, causal": {"windows": 5, "causal": True},
}


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
@pytest.mark.parametrize("window", WINDOWS)
def test_bc35_drafts_do_not_depend_on_how_the_context_came_about(window: str, method: str) -> None:
    """Rows of a batch that accept differently, across the window's edge: each draft is the one of
    a drafter that reads the whole text anew."""
    target, prompts = known()[0], random_prompts([15, 16, 17, 40, 1, 3])
    oracles = {tuple(p): greedy_oracle(target, p, 24) for p in prompts}
    script = ScriptedDrafter(oracles, lambda cycle, j: (cycle * 5 + j * 3) % 7 > 1, 7, 160)
    drafter = WatchedDrafter(random_drafter(target, method, **WINDOWS[window]), script)
    rows = [row_of(p, SamplingParams(max_tokens=24)) for p in prompts]
    state = begun(target, drafter, rows)
    while state.rows:
        cycle(state)
        state.remove_finished()
        state.check_integrity()
    assert len(drafter.drafts) > 20
    for tokens, drafts in drafter.drafts.items():
        assert drafts == fresh_drafts(target, drafter.inner, tokens)[: len(drafts)]


@pytest.mark.parametrize("place", ["prompt", "output"])
def test_bc38_the_mask_token_in_the_text_is_a_token_like_any_other(place: str) -> None:
    target, prompt = tiny_target(end_ids=()), [5, 7, 7, 9, 11]
    oracle = greedy_oracle(target, prompt, 24)
    mask = prompt[2] if place == "prompt" else oracle[6]
    oracles = {tuple(prompt): oracle}
    for first in (0, 3, 7):
        script = ScriptedDrafter(oracles, accept_first(first), 7, 160)
        inner = random_drafter(target, "dflash2", mask_token_id=mask)
        drafter = WatchedDrafter(inner, script)
        row = row_of(prompt, SamplingParams(max_tokens=24))
        state = begun(target, drafter, [row])
        while not row.is_finished:
            cycle(state)
        assert row.output_ids == list(oracle)
        for tokens, drafts in drafter.drafts.items():
            assert drafts == fresh_drafts(target, inner, tokens)[: len(drafts)]


class Untidy(VariedDrafter):
    """Behind the drafts of a row stand numbers that are no tokens: nobody may look at them."""

    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        proposal = super().select(drafted, batch)
        behind = torch.arange(self.num_draft_tokens) >= torch.tensor(proposal.lens)[:, None]
        return Proposal(proposal.ids.masked_fill(behind, -1), proposal.lens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_stands_behind_a_rows_drafts_is_never_read(temperature: float) -> None:
    target, oracles = known()
    drafter = Untidy(ScriptedDrafter(oracles, accept_first(7), 7, 160), ragged=True)
    params = SamplingParams(max_tokens=30, temperature=temperature, frequency_penalty=0.0)
    rows = [row_of(p, params) for p in PROMPTS]
    state = begun(target, drafter, rows)
    while state.rows:
        cycle(state)
        state.remove_finished()
    assert len({cycle.drafted_len for row in rows for cycle in row.cycles}) > 3
    if temperature == 0.0:
        assert [row.output_ids for row in rows] == [list(oracles[tuple(p)][:30]) for p in PROMPTS]
