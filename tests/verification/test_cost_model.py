"""What a row costs, learnt from noisy times: quickly, and without being led astray."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.verification.cost_model import PassCost


def learnt(sizes: list[int], slower: float = 1.0, cost: PassCost | None = None) -> PassCost:
    dice, cost = random.Random(len(sizes)), cost or PassCost()
    for rows in sizes:
        cost.note(rows, slower * (12 + 0.35 * rows) * dice.lognormvariate(0.0, 0.05))
    return cost


def test_two_sizes_tell_what_a_row_costs() -> None:
    cost = learnt([48, 16])
    assert cost.is_slope_known(16)
    assert cost.row_ms == pytest.approx(0.35, rel=0.4)
    assert cost.ms(16) == pytest.approx(17.6, rel=0.15)


def test_one_size_alone_does_not() -> None:
    assert not learnt([16]).is_slope_known(16)
    assert not learnt([16] * 20).is_slope_known(48)


def test_many_passes_of_one_size_keep_the_slope() -> None:
    cost = learnt([16] * 500, cost=learnt([48, 16, 32, 16]))
    assert cost.row_ms == pytest.approx(0.35, rel=0.3)


def test_a_slower_machine_is_slower_for_every_row() -> None:
    cost = learnt([16] * 25, slower=3.0, cost=learnt([48, 16, 32, 16] * 5))
    assert cost.ms(16) == pytest.approx(3 * 17.6, rel=0.15)
    assert cost.row_ms == pytest.approx(3 * 0.35, rel=0.4)


def test_a_pass_beside_others_work_hardly_counts() -> None:
    cost = learnt([16, 48] * 10)
    before = cost.ms(16)
    cost.note(16, 50 * before)
    assert cost.ms(16) < 1.25 * before
    learnt([16, 48] * 3, cost=cost)
    assert cost.ms(16) == pytest.approx(before, rel=0.1)


def test_a_first_pass_that_was_slow_is_forgotten_at_once() -> None:
    cost = PassCost()
    cost.note(16, 2000.0)
    cost = learnt([16, 48, 16, 48, 16, 48], cost=cost)
    assert cost.ms(16) == pytest.approx(17.6, rel=0.25)


@pytest.mark.parametrize(("rows", "ms"), [(0, 5.0), (8, 0.0), (8, -1.0), (8, math.nan), (8, 1e99)])
def test_what_is_no_time_of_a_pass_is_left_out(rows: int, ms: float) -> None:
    cost = learnt([16, 48])
    before = vars(cost).copy()
    cost.note(rows, ms)
    assert vars(cost) == before


@given(st.lists(st.tuples(st.integers(0, 4096), st.floats()), max_size=30))
def test_any_times_leave_finite_costs_that_are_not_negative(times: list[tuple[int, float]]) -> None:
    cost = PassCost()
    for rows, ms in times:
        cost.note(rows, ms)
    assert 0 <= cost.fixed_ms < math.inf
    assert 0 <= cost.row_ms < math.inf
    assert math.isfinite(cost.ms(128))


def test_rows_that_cost_nothing_do_not_make_it_rigid() -> None:
    """Passes limited by memory: the machine becomes slower as a whole, and is followed."""
    cost = PassCost()
    for i in range(1500):
        cost.note((1, 2, 3, 8)[i % 4], 6.0)
    for i in range(50):
        cost.note((1, 2, 3, 8)[i % 4], 12.0)
    assert cost.ms(4) == pytest.approx(12.0, rel=0.1)
