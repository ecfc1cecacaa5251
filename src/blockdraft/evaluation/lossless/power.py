"""How small an error a G-test sees: the least total variation that it finds almost surely.

If tokens really come from a law r at total variation d from the tested law p, 2 n KL(r | p) is, to
first order, the noncentrality of G. Of all laws at distance d the hardest to see is the one whose
KL is least. Joining the outcomes where r is greater into one set A, with a = p(A), keeps the
distance and can only lower KL, so KL is at least that of two coins, kl(a + d | a): whatever A is,
at least 2 d^2 + 4/9 d^4 (Kullback 1967); where one outcome has p > 1/2, a is far from 1/2 and KL is
greater.
The tests simulate what is claimed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from blockdraft.evaluation.lossless import chi_square
from blockdraft.evaluation.lossless.gtest import GTest

#: The chance of finding an error, at which "would have been caught" is said.
POWER = 0.99

_STEPS = 64  # of the search for the set that hides an error best


def detectable_distance(tests: Sequence[GTest], alpha: float, power: float = POWER) -> float | None:
    """The least total variation which, present in each of the tests, is found by them together.

    Args:
        tests: independent tests, whose statistics are added up; or a single one.
        alpha: p-value at which an error is reported.
        power: chance of finding it.
    Returns: a distance on the tested cells; None if even the greatest is not found so surely.
    """
    usable = [test for test in tests if test.freedom]
    if not usable:
        return None
    freedom = sum(test.freedom for test in usable)
    bar = chi_square.critical(freedom, alpha)

    def is_found(distance: float) -> bool:
        shift = sum(2.0 * t.num * least_divergence(t.largest_cell, distance) for t in usable)
        return chi_square.noncentral_tail(bar, freedom, min(shift, 1e7)) >= power

    # No law lies farther from p than 1 less its smallest cell.
    return _least(is_found, 1.0 - max(test.smallest_cell for test in usable))


def least_divergence(largest_cell: float, distance: float) -> float:
    """A lower bound of KL(r | p) over all r at a total variation of `distance` from p.

    Args:
        largest_cell: the greatest probability of p.
        distance: 0 to 1.
    """
    bound = 2.0 * distance**2 + 4.0 / 9.0 * distance**4
    if largest_cell <= 0.5:
        return bound
    # A set without the largest cell holds at most the rest, one with it at least that cell.
    most = min(1.0 - largest_cell, 1.0 - distance)
    gains = [most * i / _STEPS for i in range(1, _STEPS + 1)]
    if largest_cell + distance <= 1.0:
        gains.append(largest_cell)
    return max(bound, min((_binary(a + distance, a) for a in gains if a > 0.0), default=bound))


def _binary(r: float, p: float) -> float:
    """kl of two coins."""
    return sum(x * math.log(x / y) for x, y in ((r, p), (1.0 - r, 1.0 - p)) if x > 0.0)


def _least(is_found: Callable[[float], bool], farthest: float) -> float | None:
    low, high = 0.0, farthest
    if not is_found(high):
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
