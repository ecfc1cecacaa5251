"""The best lengths are those that a search over all lengths finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.verification.draft_lens import (
    Costs,
    RowChance,
    best_lens,
    best_lens_drafting,
    most_tokens,
)

LONGEST = 3
RATES = st.lists(st.floats(0.0, 1.0), max_size=LONGEST).map(
    lambda rates: list(itertools.accumulate(rates, lambda a, b: a * b))
)
ROWS = st.lists(st.builds(RowChance, RATES, RATES, st.just(False)), min_size=1, max_size=3)
COSTS = st.builds(
    Costs,
    fixed_ms=st.floats(0.5, 20),
    row_ms=st.floats(0, 3),
    draft_ms=st.floats(0, 8),
    is_padded=st.booleans(),
)


def ways(row: RowChance) -> Iterator[tuple[int, int]]:
    yield from ((n, 0) for n in range(len(row.looked_up) + 1))
    yield from ((0, n) for n in range(1, len(row.drafted) + 1))


def rate_of(rows: list[RowChance], way: tuple[tuple[int, int], ...], costs: Costs) -> float:
    """Tokens a millisecond, written down once more."""
    tokens = len(rows) + sum(
        sum(row.looked_up[:n]) + sum(row.drafted[:m]) for row, (n, m) in zip(rows, way, strict=True)
    )
    sizes = [n + m for n, m in way]
    places = len(rows) * max(sizes) if costs.is_padded else sum(sizes)
    ms = costs.fixed_ms + costs.row_ms * (len(rows) + places)
    return tokens / (ms + costs.draft_ms * any(m for _, m in way))


@settings(max_examples=60, deadline=None)
@given(ROWS, COSTS, st.sampled_from([0.0, 0.1, 5.0]))
def test_no_other_lengths_are_better(rows: list[RowChance], costs: Costs, guess: float) -> None:
    best = best_lens(rows, costs, guess, LONGEST)
    way = tuple(zip(best.looked_up, best.drafted, strict=True))
    assert best.rate == pytest.approx(rate_of(rows, way, costs))
    most = max(rate_of(rows, other, costs) for other in itertools.product(*map(ways, rows)))
    assert best.rate == pytest.approx(most, rel=0.005)


def test_padded_passes_are_as_long_for_all_as_for_one() -> None:
    rows = [RowChance((), (0.9, 0.8, 0.7)), RowChance((), (0.1, 0.01, 0.001))]
    lens = best_lens(rows, Costs(10.0, 0.5, is_padded=True), 0.0, LONGEST)
    assert lens.drafted == (3, 3)  # what the second row has is free
    assert lens.ms == pytest.approx(10 + 0.5 * 8)
    lens = best_lens(rows, Costs(10.0, 5.0, is_padded=True), 0.0, LONGEST)
    assert lens.drafted == (0, 0)


def test_a_pass_that_costs_too_much_is_left_out_as_a_whole() -> None:
    rows = [RowChance((0.9,), (0.5,)), RowChance((), (0.5,))]
    assert best_lens(rows, Costs(10.0, 0.1, 1.0), 0.0, LONGEST).drafted == (0, 1)
    assert best_lens(rows, Costs(10.0, 0.1, 9.0), 0.0, LONGEST).drafted == (0, 0)
    assert best_lens(rows, Costs(10.0, 0.1, 9.0), 0.0, LONGEST).looked_up == (1, 0)


@pytest.mark.parametrize("is_padded", [False, True])
def test_fixed_rows_take_all_there_is(is_padded: bool) -> None:
    costs = Costs(1.0, 1e9, 1e9, is_padded)
    rows = [RowChance((0.0, 0.0), (0.1,), True), RowChance((), (0.0, 0.0), True), RowChance((), ())]
    lens = best_lens(rows, costs, 0.0, LONGEST)
    assert (lens.looked_up, lens.drafted) == ((2, 0, 0), (0, 2, 0))


def test_nothing_to_draft_is_plain_decoding() -> None:
    for lens in (
        best_lens([RowChance()] * 2, Costs(0.0, 0.0), 0.0, 0),
        most_tokens([RowChance()] * 2, Costs(0.0, 0.0), 0),
        best_lens_drafting([RowChance()] * 2, Costs(0.0, 0.0), 0.0, 0),
    ):
        assert (lens.looked_up, lens.drafted, lens.num_tokens) == ((0, 0), (0, 0), 2.0)


def test_asking_a_drafter_that_does_not_pay_asks_for_one_token() -> None:
    rows = [RowChance((0.9, 0.8), (0.1,)), RowChance((), (0.1, 0.01))]
    lens = best_lens_drafting(rows, Costs(10.0, 5.0, 50.0), 0.1, LONGEST)
    assert (lens.looked_up, lens.drafted) == ((2, 0), (0, 1))
