"""Outputs have the target's law whatever lengths a budget chooses: thrown, and learnt."""

from __future__ import annotations

from typing import Any

import pytest

from blockdraft.drafters.base import Drafter
from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.verification.budget import DraftBudget
from tests.exact.test_loop_law import PLAIN, SURE, WARPS, point, requests, sparse, table, worst
from tests.fakes.load import RandomBudget, TimedBudget, World
from tests.fakes.scripted import TableTarget

BUDGETS: dict[str, Any] = {
    "thrown": lambda: RandomBudget(5),
    "learnt, dear": lambda: TimedBudget(World(row_ms=1.0)),
    "learnt, cheap": lambda: TimedBudget(World(row_ms=0.02, draft_row_ms=0.0)),
}
DRAFTERS: dict[str, Any] = {
    "point": point,
    "sparse": sparse,
    "sparse+ngram": lambda: LookupFirst(NgramDrafter(3, min_n=1), sparse()),
}


def run(drafter: Drafter, budget: DraftBudget, warp: str, number: int) -> list[Any]:
    # Without a seed of their own, or their lengths would be those of one request alone.
    rows = requests(WARPS[warp], number)
    limits = RunnerLimits(max_batch_size=128)
    for _ in Runner(TableTarget(table()), drafter, rows, limits, budget=budget).run():
        pass
    return rows


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_outputs_have_the_law_of_the_target(drafter: str, budget: str) -> None:
    rows = run(DRAFTERS[drafter](), BUDGETS[budget](), "temperature", 2500)
    assert worst(rows, PLAIN) > SURE
    lens = {cycle.drafted_len for row in rows for cycle in row.cycles}
    assert len(lens) >= 3


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_with_filters(drafter: str) -> None:
    rows = run(DRAFTERS[drafter](), RandomBudget(6), "top-k, top-p", 2500)
    assert worst(rows, WARPS["top-k, top-p"]) > SURE
