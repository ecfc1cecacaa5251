"""Confidence intervals of ratios, by resampling prompts (Efron 1979, percentile method)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 2000

Interval = tuple[float, float]


def ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Interval of sum(numerators) / sum(denominators), one entry of each a prompt.

    All turns of a prompt belong to its one entry, since they are not independent.

    Returns: None for fewer than two prompts, or where a resample would divide by nothing.
    """
    counts = _resamples(len(numerators), seed)
    if counts is None:
        return None
    return _interval(counts @ np.asarray(numerators), counts @ np.asarray(denominators), level)


def ratio_of_ratios_interval(
    top: tuple[Sequence[float], Sequence[float]],
    bottom: tuple[Sequence[float], Sequence[float]],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Interval of (sum a / sum b) / (sum c / sum d) over the same prompts, resampled together.

    Args:
        top, bottom: (a, b) and (c, d), one entry of each a prompt, in the same order.
    """
    counts = _resamples(len(top[0]), seed)
    if counts is None:
        return None
    a, b, c, d = (counts @ np.asarray(values) for values in (*top, *bottom))
    return _interval(a * d, b * c, level)


def _resamples(num: int, seed: int) -> NDArray[np.float64] | None:
    """How often each prompt was drawn, [resample, prompt]."""
    if num < 2:
        return None
    rng = np.random.default_rng(seed)
    return rng.multinomial(num, [1 / num] * num, size=NUM_RESAMPLES).astype(np.float64)


def _interval(
    top: NDArray[np.float64], bottom: NDArray[np.float64], level: float
) -> Interval | None:
    if not bottom.all():
        return None
    low, high = np.quantile(top / bottom, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
