"""Loops are told from lists, tables and other honest repetition."""

from __future__ import annotations

import random

import pytest

from blockdraft.data.looping import distinct_share, is_looping

RANDOM = random.Random(0)


def noise(length: int) -> list[int]:
    return [RANDOM.randrange(1000) for _ in range(length)]


@pytest.mark.parametrize("period", [1, 2, 7, 40, 80])
@pytest.mark.parametrize("end", [[], [5000]], ids=["cut", "ended"])
def test_a_cycle_at_the_end_is_a_loop(period: int, end: list[int]) -> None:
    rounds = max(3, 48 // period + 1)
    assert is_looping(noise(30) + noise(period) * rounds + end)


@pytest.mark.parametrize("period", [7, 40, 80])
def test_a_cycle_that_was_left_is_no_loop(period: int) -> None:
    assert not is_looping(noise(60) + noise(period) * 3 + noise(60))


def test_a_cycle_with_a_counter_in_it_is_a_loop() -> None:
    line = noise(12)
    assert is_looping([token for i in range(20) for token in [*line, 2000 + i]])


def test_what_is_short_or_different_is_no_loop() -> None:
    assert not is_looping([])
    assert not is_looping([1, 1, 1])
    assert not is_looping([3] * 40)
    assert not is_looping(noise(300))
    assert not is_looping(noise(30) * 2)  # said twice


def test_lines_that_share_their_beginning_are_no_loop() -> None:
    start = noise(4)
    assert not is_looping([token for _ in range(12) for token in [*start, *noise(10)]])


def test_distinct_runs() -> None:
    assert distinct_share([1, 2, 3]) == 1.0
    assert distinct_share([1] * 10) == pytest.approx(1 / 7)
    assert distinct_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(4 / 5)
