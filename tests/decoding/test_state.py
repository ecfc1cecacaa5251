"""Rows leave in any order, and those that stay keep their caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.decoding.step import cycle
from blockdraft.types import SamplingParams
from tests.decoding.loops import begun, row_of
from tests.fakes.drafting import random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import random_prompts
from tests.fakes.scripted import TableTarget

PROMPTS, PARAMS = random_prompts([3, 1, 8, 5, 2, 6]), SamplingParams(max_tokens=9)


@settings(deadline=None)
@given(leaving=st.sets(st.integers(0, 5)), failed=st.sets(st.integers(0, 5)))
def test_any_rows_leave_at_once(leaving: set[int], failed: set[int]) -> None:
    target = TableTarget(torch.randn(160, 1, 160).expand(160, 160, 160))
    rows = [row_of(p, PARAMS) for p in PROMPTS]
    state = begun(target, None, rows, num_slots=7)
    for i in leaving:
        rows[i].finish_reason = "cancelled"
    for i in failed - leaving:
        rows[i].fail("for the test")
    gone = state.remove_finished()
    state.check_integrity()
    assert {id(row) for row in gone} == {id(rows[i]) for i in leaving | failed}
    held: Any = state.cache
    for slot, row in enumerate(state.rows):
        assert held.ids[slot] == row.token_ids[:-1]
    assert not any(held.ids[len(state.rows) :])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_contexts_move_with_their_rows(order: tuple[int, ...]) -> None:
    target = tiny_target(end_ids=())
    rows = [row_of(p, PARAMS) for p in PROMPTS[:4]]
    state = begun(target, random_drafter(target), rows)
    context: Any = state.context
    for leaving in order:
        before = {id(row): context.k[:, i, : context.lens[i]].clone()
                  for i, row in enumerate(state.rows)}  # fmt: skip
        rows[leaving].finish_reason = "cancelled"
        state.remove_finished()
        for slot, row in enumerate(state.rows):
            assert context.lens[slot] == len(row.token_ids) - 1
            assert torch.equal(context.k[:, slot, : context.lens[slot]], before[id(row)])
    assert not any(context.lens)


def test_a_broken_promise_is_noticed() -> None:
    """The check that the runner makes after every cycle can fail."""
    target = tiny_target(end_ids=())
    state = begun(target, None, [row_of(p, PARAMS) for p in PROMPTS[:2]])
    cycle(state)
    state.check_integrity()
    state.cache.crop(1, state.cache.lens[1] - 1)
    with pytest.raises(AssertionError):
        state.check_integrity()
    state.rows.pop()
    state.cache.crop(0, state.cache.lens[0])
    with pytest.raises(AssertionError):
        state.check_integrity()
