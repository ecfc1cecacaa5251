"""The G-test of counted tokens against a law, and Holm's correction for many of them.

Source: Sokal and Rohlf 1981, Biometry, ch. 17 (G-test, Williams' correction); Holm 1979, "A simple
sequentially rejective multiple test procedure".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from blockdraft.evaluation.lossless import chi_square

#: Cells expected to be rarer than this are counted together: below, the chi-square limit is rough.
RARE = 10.0


@dataclass(frozen=True, kw_only=True)
class GTest:
    """Counts against a law.

    Attributes:
        num: counted tokens.
        freedom: cells tested less one; 0 if the law leaves nothing to test.
        statistic: G after Williams' correction; infinite if something impossible was counted.
        p_value: chance of so great a statistic where nothing is wrong; 1 without freedom.
        num_impossible: counted tokens that the law gives probability 0.
        largest_cell, smallest_cell: the extreme probabilities of the tested cells.
        distance: total variation between counts and law on the tested cells; noise included.
    """

    num: int
    freedom: int
    statistic: float
    p_value: float
    num_impossible: int
    largest_cell: float
    smallest_cell: float
    distance: float


def g_test(counts: Float64[Tensor, "v"], law: Float64[Tensor, "v"]) -> GTest:
    """Test counts against a law.

    Which cells are counted together depends on the law and on the number of counts alone.

    Args:
        counts: how often each outcome was seen.
        law: probabilities, sum 1.
    Raises: ValueError if shapes differ, nothing was counted, or the law does not sum to 1.
    """
    num = int(counts.sum())
    if counts.shape != law.shape or num == 0 or abs(float(law.sum()) - 1.0) > 1e-9:
        raise ValueError(
            f"{num} counts of {tuple(counts.shape)} outcomes and a law of {tuple(law.shape)} that "
            f"sums to {float(law.sum())}; give counts and a law of the same outcomes"
        )
    num_impossible = int(counts[law == 0.0].sum())
    seen, cells = _pool(counts, law, num)
    expected = cells * num
    freedom = len(cells) - 1
    terms = torch.xlogy(seen, seen / expected)
    statistic, p_value = 0.0, 1.0
    if freedom:
        statistic = max(0.0, 2.0 * float(terms.sum()) / _williams(cells, num))
        p_value = chi_square.tail(statistic, freedom)
    if num_impossible:
        statistic, p_value = float("inf"), 0.0
    return GTest(
        num=num,
        freedom=freedom,
        statistic=statistic,
        p_value=p_value,
        num_impossible=num_impossible,
        largest_cell=float(cells.max()),
        smallest_cell=float(cells.min()),
        distance=float((seen / num - cells).abs().sum()) / 2,
    )


def _pool(
    counts: Float64[Tensor, "v"], law: Float64[Tensor, "v"], num: int
) -> tuple[Float64[Tensor, "n"], Float64[Tensor, "n"]]:
    """Counts and law of the tested cells: frequent outcomes, and all rare ones as one."""
    is_rare = law * num < RARE
    seen, cells = counts[~is_rare], law[~is_rare]
    rare_seen, rare_cell = counts[is_rare].sum(), law[is_rare].sum()
    if float(rare_cell) * num < RARE and len(cells):  # too rare even together
        least = int(cells.argmin())
        rare_seen, rare_cell = rare_seen + seen[least], rare_cell + cells[least]
        keep = torch.arange(len(cells)) != least
        seen, cells = seen[keep], cells[keep]
    if float(rare_cell) > 0.0:
        seen, cells = torch.cat([seen, rare_seen[None]]), torch.cat([cells, rare_cell[None]])
    return seen, cells / cells.sum()


def _williams(cells: Float64[Tensor, "n"], num: int) -> float:
    """Brings the mean of G nearer to its limit."""
    freedom = len(cells) - 1
    return 1.0 + (float((1.0 / cells).sum()) - 1.0) / (6.0 * num * freedom)


def together(tests: Sequence[GTest]) -> GTest:
    """One test of many independent ones: an error too small for each may show in all.

    Raises: ValueError if there are none.
    """
    if not tests:
        raise ValueError("no tests; give at least one")
    statistic, freedom = sum(t.statistic for t in tests), sum(t.freedom for t in tests)
    p_value = 1.0 if not freedom else 0.0
    if freedom and statistic < float("inf"):
        p_value = chi_square.tail(statistic, freedom)
    num = sum(test.num for test in tests)
    return GTest(
        num=num,
        freedom=freedom,
        statistic=statistic,
        p_value=p_value,
        num_impossible=sum(test.num_impossible for test in tests),
        largest_cell=max(test.largest_cell for test in tests),
        smallest_cell=min(test.smallest_cell for test in tests),
        distance=sum(test.distance * test.num for test in tests) / num,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: those below alpha are rejected, and the chance that any of them is so
    wrongly is at most alpha, however the tests depend on each other."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = highest
    return adjusted
