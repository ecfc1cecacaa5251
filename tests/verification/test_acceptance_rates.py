"""How often drafts stand: of all requests, and of one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.verification.acceptance import Acceptance, RowAcceptance, SlotRates


def test_slots_are_counted_where_they_were_reached() -> None:
    slots = SlotRates()
    for _ in range(60):
        slots.note(1, 4)  # the first stands, the second never
    first, second, third = slots.rates(3)
    assert first < 0.1
    assert second > 0.9
    assert third == pytest.approx(second)  # nobody was there: like the one before it


def test_nothing_seen_is_even_odds() -> None:
    assert SlotRates().rates(2) == [0.5, 0.5]


def test_old_drafts_are_forgotten() -> None:
    slots = SlotRates()
    for _ in range(3000):
        slots.note(0, 1)
    for _ in range(800):
        slots.note(1, 1)
    assert slots.rates(1)[0] < 0.3


def test_a_request_unlike_the_others_is_known_after_a_few_drafts() -> None:
    acceptance, usual, loop = Acceptance(), RowAcceptance(), RowAcceptance()
    for _ in range(50):
        acceptance.note(usual, True, 2, 1, 7)
    before = acceptance.survival(loop, True, 2, 7)
    for _ in range(6):
        acceptance.note(loop, True, 2, 7, 7)
    after = acceptance.survival(loop, True, 2, 7)
    assert after[2] > 2 * before[2]
    assert acceptance.survival(usual, True, 2, 7)[2] < after[2]


def test_kinds_of_drafts_and_of_requests_are_counted_apart() -> None:
    acceptance, row = Acceptance(), RowAcceptance()
    for _ in range(40):
        acceptance.note(row, True, 0, 0, 3)
    new = RowAcceptance()
    assert acceptance.survival(new, True, 0, 1)[0] < 0.2
    assert acceptance.survival(new, False, 0, 1) == [0.5]
    assert acceptance.survival(new, True, 3, 1) == [0.5]
    assert acceptance.survival(row, True, 3, 1) == [0.5]


def test_what_was_not_seen_of_a_request_fades() -> None:
    acceptance, row = Acceptance(), RowAcceptance()
    for _ in range(40):
        acceptance.note(RowAcceptance(), True, 0, 1, 1)
        acceptance.note(row, True, 0, 0, 1)
    low = row.drafted.factor
    for _ in range(100):
        row.drafted.fade()
    assert 1.0 <= row.drafted.factor < low


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60))
def test_survival_is_a_probability_and_falls(drafts: list[tuple[int, int]]) -> None:
    acceptance, row = Acceptance(), RowAcceptance()
    for one, other in drafts:
        acceptance.note(row, True, 0, min(one, other), max(one, other))
    survival = [1.0, *acceptance.survival(row, True, 0, 7)]
    assert all(0 <= b <= a for a, b in itertools.pairwise(survival))
