"""Tails of the chi-square law, central and noncentral."""

from __future__ import annotations

import math

import torch

_TINY = 1e-14


def tail(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees of freedom > statistic).

    Raises: ValueError if there is no freedom.
    """
    if freedom < 1:
        raise ValueError(f"freedom is {freedom}; it must be at least 1")
    return float(_tails(torch.tensor([freedom / 2], dtype=torch.float64), statistic)[0])


def noncentral_tail(statistic: float, freedom: int, shift: float) -> float:
    """P(noncentral chi-square > statistic), with noncentrality `shift`.

    A Poisson(shift / 2) mixture of central laws with 2 j degrees more (Johnson, Kotz, Balakrishnan
    1995, vol. 2, ch. 29); the terms left out hold less than 1e-12 together.
    """
    if freedom < 1 or shift < 0.0:
        raise ValueError(f"freedom {freedom} and shift {shift}; at least 1 and 0 are needed")
    mean = shift / 2
    if mean == 0.0:
        return tail(statistic, freedom)
    reach = 9.0 * math.sqrt(mean) + 40.0
    first = max(0, math.floor(mean - reach))
    j = torch.arange(first, math.ceil(mean + reach) + 1, dtype=torch.float64)
    weights = torch.exp(j * math.log(mean) - mean - torch.lgamma(j + 1))
    return float((weights * _tails(freedom / 2 + j, statistic)).sum())


def critical(freedom: int, alpha: float) -> float:
    """The statistic whose tail is alpha.

    Raises: ValueError if alpha is not between 0 and 1.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is {alpha}; it must be between 0 and 1")
    low, high = 0.0, 2.0 * freedom + 10.0
    while tail(high, freedom) > alpha:
        high *= 2.0
    while high - low > _TINY + 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > alpha else (low, middle)
    return high


def _tails(halves: torch.Tensor, statistic: float) -> torch.Tensor:
    at = torch.full_like(halves, max(statistic, 0.0) / 2)
    tails: torch.Tensor = torch.special.gammaincc(halves, at)
    return tails
