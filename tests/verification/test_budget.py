"""The budget in worlds made of numbers: never much below plain decoding, and near the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.verification.acceptance import RowAcceptance
from blockdraft.verification.budget import DraftBudget, PassKind, RowLoad, RowOutcome
from tests.fakes.load import KIND, NUM_DRAFT, Run, World, plain_rate, rate

GOOD = World(drafted=0.8, row_ms=0.05)
USELESS = World(drafted=0.15, row_ms=0.35, draft_row_ms=1.0)
WORLDS = {
    "good": GOOD,
    "useless": USELESS,
    "even": World(drafted=0.55),
    "dear rows": World(drafted=0.6, row_ms=1.0),
    "dear passes": World(drafted=0.6, draft_fixed_ms=20.0),
    "copies": World(drafted=0.3, looked_up=0.9, found=0.3),
    "bad copies": World(drafted=0.3, looked_up=0.2, found=0.6),
    "padded": World(drafted=0.6, kind=replace(KIND, is_padded=True)),
    "no model": World(looked_up=0.8, found=0.5, kind=replace(KIND, num_draft_tokens=0)),
    "busy": World(drafted=0.4, noise=0.2, busy=0.05),
}


@pytest.mark.parametrize("num_rows", [2, 16])
@pytest.mark.parametrize("name", WORLDS)
def test_it_converges_to_the_best_lengths(name: str, num_rows: int) -> None:
    world, budget = WORLDS[name], DraftBudget()
    rate(world, num_rows, budget, 100)
    warm = rate(world, num_rows, budget, 400)
    assert warm > 0.98 * plain_rate(world, num_rows)
    assert warm > 0.92 * rate(world, num_rows, None, 400)


@pytest.mark.parametrize("name", [name for name in WORLDS if name != "busy"])
def test_the_first_answers_of_all_hardly_pay_for_learning(name: str) -> None:
    """16 requests of 96 tokens, with nothing known before."""
    world = WORLDS[name]
    assert rate(world, 16, DraftBudget(), 96) > 0.95 * plain_rate(world, 16)


def drafts(run: Run, last: int) -> float:
    """Share of the last cycles in which the model drafted."""
    return sum(any(lens.drafted) for lens in run.plans[-last:]) / last


def test_the_model_rests_where_it_cannot_pay_and_wakes_when_rows_leave() -> None:
    world, budget = World(drafted=0.6, row_ms=1.0), DraftBudget()
    assert drafts(Run(world, 16, budget).cycles(100), 60) < 0.1
    assert drafts(Run(world, 2, budget).cycles(10), 5) == 1.0


def test_what_did_not_pay_is_asked_again_and_found_to_pay() -> None:
    budget = DraftBudget()
    assert drafts(Run(replace(GOOD, drafted=0.05), 8, budget).cycles(300), 100) < 0.15
    assert drafts(Run(GOOD, 8, budget).cycles(300), 100) > 0.8


def test_asking_again_loses_at_most_two_percent() -> None:
    world, budget = replace(USELESS, draft_fixed_ms=30.0), DraftBudget()
    rate(world, 16, budget, 100)
    assert rate(world, 16, budget, 800) > 0.98 * plain_rate(world, 16)


def test_copies_are_kept_where_the_model_does_not_pay() -> None:
    run = Run(WORLDS["copies"], 16, DraftBudget()).cycles(200)
    late = run.plans[-100:]
    assert drafts(run, 100) < 0.3
    assert sum(sum(lens.looked_up) for lens in late) > 2 * len(late)


def test_one_request_alone_takes_all_there_is() -> None:
    for lens in Run(USELESS, 1, DraftBudget()).cycles(30).plans:
        assert lens.drafted == (NUM_DRAFT,)


def load(limit: int = NUM_DRAFT, found: Sequence[int] = (), is_fixed: bool = False) -> RowLoad:
    return RowLoad(limit, not is_fixed, is_fixed, RowAcceptance(), found, 2 if found else 0)


def test_requests_with_fixed_lengths_take_all_there_is_beside_others() -> None:
    budget = DraftBudget()
    Run(replace(USELESS, row_ms=5.0), 8, budget).cycles(60)
    rows = [load(), load(is_fixed=True), load(3, is_fixed=True), load(5, range(5), True)]
    lens = budget.plan(rows, KIND)
    assert lens.drafted[1:] == (NUM_DRAFT, 3, 0)
    assert lens.looked_up == (0, 0, 0, 5)
    assert lens.drafted[0] < NUM_DRAFT


def test_rows_without_room_draft_nothing() -> None:
    lens = DraftBudget().plan([load(0), load(0)], KIND)
    assert (lens.looked_up, lens.drafted) == ((0, 0), (0, 0))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), min_size=1, max_size=5
        ),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 1e12),
    st.floats(0, 1e12) | st.just(math.nan),
    st.integers(0, NUM_DRAFT),
    st.booleans(),
)
def test_any_loads_and_times_give_lengths_that_fit(
    cycles: list[list[tuple[int, int, bool]]],
    pass_ms: float,
    draft_ms: float,
    num_draft_tokens: int,
    is_padded: bool,
) -> None:
    budget, kind = (
        DraftBudget(),
        PassKind(num_draft_tokens=num_draft_tokens, is_padded=is_padded, wants_logits=False),
    )
    for cycle in cycles:
        rows = [load(limit, range(min(found, limit)), fixed) for limit, found, fixed in cycle]
        lens = budget.plan(rows, kind)
        outcomes = []
        for row, n, m in zip(rows, lens.looked_up, lens.drafted, strict=True):
            assert 0 <= n <= len(row.found_ids)
            assert 0 <= m <= min(row.limit, num_draft_tokens)
            assert n == 0 or m == 0
            outcomes.append(RowOutcome(n + m, (n + m) // 2, range((n + m) // 2 + 1)))
        budget.note(rows, kind, lens, outcomes, pass_ms, draft_ms)
