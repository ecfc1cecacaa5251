"""Intervals: exact where they can be, of the right width elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from blockdraft.evaluation.bootstrap import ratio_interval, ratio_of_ratios_interval


def test_equal_prompts_leave_no_doubt() -> None:
    assert ratio_interval([6.0] * 5, [3.0] * 5) == (2.0, 2.0)


def test_the_width_is_that_of_the_mean() -> None:
    """200 draws of a normal law: the interval of their mean is +-1.96 standard errors wide."""
    values = np.random.default_rng(3).normal(5.0, 1.0, 200)
    found = ratio_interval(values.tolist(), [1.0] * 200)
    assert found is not None
    error = values.std() / np.sqrt(200)
    assert found[0] == pytest.approx(values.mean() - 1.96 * error, abs=0.02)
    assert found[1] == pytest.approx(values.mean() + 1.96 * error, abs=0.02)


def test_prompts_weigh_by_their_denominator() -> None:
    found = ratio_interval([100.0, 1.0], [100.0, 1.0])
    assert found == (1.0, 1.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(1).random(30).tolist()
    ones = [1.0] * 30
    assert ratio_interval(values, ones) == ratio_interval(values, ones)
    assert ratio_interval(values, ones, seed=1) != ratio_interval(values, ones, seed=2)


def test_one_prompt_has_no_interval() -> None:
    assert ratio_interval([1.0], [1.0]) is None
    assert ratio_interval([], []) is None


def test_a_resample_without_any_cycle_has_no_ratio() -> None:
    assert ratio_interval([0.0, 3.0], [0.0, 1.0]) is None


def test_paired_ratios_cancel_what_prompts_share() -> None:
    """Prompts of very different speed, each exactly twice as fast with the drafter."""
    seconds = [1.0, 10.0, 100.0]
    fast = [second / 2 for second in seconds]
    tokens = [10.0] * 3
    assert ratio_of_ratios_interval((tokens, fast), (tokens, seconds)) == pytest.approx((2.0, 2.0))
