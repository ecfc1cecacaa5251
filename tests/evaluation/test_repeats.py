"""Repeats of token texts against a search of all pairs."""

from __future__ import annotations

import random

import pytest

from blockdraft.evaluation.repeats import distinct_ngrams, longest_repeat


def slow_longest_repeat(ids: list[int]) -> int:
    best = 0
    for i in range(len(ids)):
        for j in range(i + 1, len(ids)):
            length = 0
            while j + length < len(ids) and ids[i + length] == ids[j + length]:
                length += 1
            best = max(best, length)
    return best


@pytest.mark.parametrize("num_words", [1, 2, 3, 8])
def test_longest_repeat_is_that_of_all_pairs(num_words: int) -> None:
    rng = random.Random(num_words)
    for length in range(40):
        ids = [rng.randrange(num_words) * 70_000 for _ in range(length)]
        assert longest_repeat(ids) == slow_longest_repeat(ids)


def test_a_loop_is_one_long_repeat() -> None:
    assert longest_repeat([1, 2, 3] * 5) == 12
    assert longest_repeat([1, 2, 3, 4]) == 0


def test_tokens_are_compared_whole() -> None:
    """1 and 256 share bytes at shifted places."""
    assert longest_repeat([1, 256, 65536, 16777216]) == 0


def test_distinct_ngrams() -> None:
    assert distinct_ngrams([1, 2, 3, 4, 5]) == 1.0
    assert distinct_ngrams([1] * 6) == pytest.approx(1 / 3)
    assert distinct_ngrams([1, 2, 1, 2, 1, 2]) == pytest.approx(2 / 3)
    assert distinct_ngrams([1, 2, 3]) is None
