"""The G-test, its power and Holm's correction: known values, and simulation."""

from __future__ import annotations

import math

import pytest
import torch

from blockdraft.evaluation.lossless import chi_square
from blockdraft.evaluation.lossless.gtest import GTest, g_test, holm, together
from blockdraft.evaluation.lossless.power import detectable_distance, least_divergence

# Tables of the chi-square law, and of the noncentral one (Haynam et al. 1970: the shift at which
# a test of level alpha has the given power).
CRITICAL = [(1, 0.05, 3.8415), (10, 0.01, 23.2093), (100, 0.001, 149.449)]
SHIFTS = [(1, 0.05, 0.9, 10.507), (5, 0.05, 0.9, 16.470)]


def law(*weights: float) -> torch.Tensor:
    cells = torch.tensor(weights, dtype=torch.float64)
    return cells / cells.sum()


def draws(cells: torch.Tensor, num: int, times: int, seed: int = 0) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    ids = torch.multinomial(cells.expand(times, -1), num, replacement=True, generator=gen)
    return [torch.bincount(row, minlength=len(cells)).double() for row in ids]


@pytest.mark.parametrize(("freedom", "alpha", "value"), CRITICAL)
def test_critical_values_are_those_of_the_tables(freedom: int, alpha: float, value: float) -> None:
    assert chi_square.critical(freedom, alpha) == pytest.approx(value, rel=2e-5)
    assert chi_square.tail(value, freedom) == pytest.approx(alpha, rel=1e-4)


@pytest.mark.parametrize(("freedom", "alpha", "power", "shift"), SHIFTS)
def test_noncentral_tails_are_those_of_the_tables(
    freedom: int, alpha: float, power: float, shift: float
) -> None:
    bar = chi_square.critical(freedom, alpha)
    assert chi_square.noncentral_tail(bar, freedom, shift) == pytest.approx(power, abs=2e-4)
    assert chi_square.noncentral_tail(bar, freedom, 0.0) == pytest.approx(alpha)


@pytest.mark.parametrize("shift", [0.3, 7.0, 60.0])
@pytest.mark.parametrize("bar", [0.5, 10.0, 40.0])
def test_one_degree_is_a_shifted_normal_squared(bar: float, shift: float) -> None:
    root, at = math.sqrt(shift), math.sqrt(bar)
    tail = sum(math.erfc((at - side * root) / math.sqrt(2)) / 2 for side in (-1, 1))
    assert chi_square.noncentral_tail(bar, 1, shift) == pytest.approx(tail, rel=1e-9)


def test_a_large_shift_does_not_overflow() -> None:
    assert chi_square.noncentral_tail(100.0, 5, 1e6) == pytest.approx(1.0)
    assert chi_square.noncentral_tail(1e6, 5, 1e6) == pytest.approx(0.5, abs=0.02)


def test_g_by_hand() -> None:
    counts = torch.tensor([60.0, 40.0], dtype=torch.float64)
    found = g_test(counts, law(1, 1))
    raw = 2 * (60 * math.log(60 / 50) + 40 * math.log(40 / 50))
    assert found.statistic == pytest.approx(raw / (1 + 3 / 600))
    assert (found.num, found.freedom, found.distance) == (100, 1, pytest.approx(0.1))


def test_rare_outcomes_are_counted_together_and_impossible_ones_never_forgiven() -> None:
    cells = law(0.9, 0.04, 0.03, 0.03)
    counts = torch.tensor([90.0, 4, 3, 3], dtype=torch.float64)
    assert g_test(counts, cells).freedom == 1  # 4, 3 and 3 expected: ten together
    assert g_test(counts, law(0.99, 0.004, 0.003, 0.003)).freedom == 0
    impossible = g_test(counts, law(0.9, 0.07, 0.03, 0.0))
    assert (impossible.p_value, impossible.num_impossible) == (0.0, 3)


def test_what_is_no_law_is_refused() -> None:
    counts = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for cells in (law(1, 1) / 2, law(1, 1, 1)):
        with pytest.raises(ValueError, match="give counts and a law"):
            g_test(counts, cells)
    with pytest.raises(ValueError, match="at least one"):
        together([])


SHAPES = [law(1, 1), law(8, 1, 1), law(*range(1, 9)), law(*[1.0 / i**2 for i in range(1, 40)])]


@pytest.mark.parametrize("cells", SHAPES, ids=len)
def test_false_alarms_are_as_rare_as_they_should_be(cells: torch.Tensor) -> None:
    """2,000 runs without a fault: p below a bar as often as it says, within three deviations."""
    found = [g_test(counts, cells).p_value for counts in draws(cells, 400, 2000)]
    for bar in (0.002, 0.05):
        expected = 2000 * bar
        alarms = sum(p < bar for p in found)
        assert alarms <= expected + 3 * math.sqrt(expected)
    assert alarms >= expected - 3 * math.sqrt(expected)


def shifted(cells: torch.Tensor, distance: float, up: list[int]) -> torch.Tensor:
    """The law at a total variation `distance` that gains on the outcomes `up`: the least visible
    one for that choice of outcomes."""
    gains = torch.zeros(len(cells), dtype=torch.bool)
    gains[up] = True
    mass = float(cells[gains].sum())
    return torch.where(gains, cells * (1 + distance / mass), cells * (1 - distance / (1 - mass)))


@pytest.mark.parametrize("cells", SHAPES, ids=len)
@pytest.mark.parametrize("num", [300, 2000])
def test_the_promised_power_is_there(cells: torch.Tensor, num: int) -> None:
    """An error of the reported size, in its least visible direction, is found 99 times of 100."""
    alpha = 1e-5
    distance = detectable_distance([g_test(draws(cells, num, 1)[0], cells)], alpha)
    assert distance is not None
    order = cells.argsort(descending=True).tolist()
    sets = [order[:1], order[1:], order[: len(order) // 2], order[::2]]
    for up in [s for s in sets if float(cells[s].sum()) + distance < 1]:
        wrong = shifted(cells, distance, up)
        assert float((wrong - cells).abs().sum()) / 2 == pytest.approx(distance)
        found = [g_test(c, cells).p_value < alpha for c in draws(wrong, num, 300)]
        assert sum(found) / 300 > 0.97, up  # 0.99 less three deviations


def test_the_bound_is_not_loose_either() -> None:
    """At 60 % of the reported size an even coin's error is mostly missed."""
    cells, num, alpha = law(1, 1), 2000, 1e-5
    distance = detectable_distance([g_test(draws(cells, num, 1)[0], cells)], alpha)
    assert distance is not None
    wrong = shifted(cells, 0.6 * distance, [0])
    found = [g_test(c, cells).p_value < alpha for c in draws(wrong, num, 500)]
    assert sum(found) / 500 < 0.6


def test_many_tests_together_see_smaller_errors() -> None:
    cells = law(*range(1, 9))
    tests = [g_test(counts, cells) for counts in draws(cells, 500, 20)]
    one, every = detectable_distance(tests[:1], 1e-5), detectable_distance(tests, 1e-5)
    assert one is not None
    assert every is not None
    assert every < 0.5 * one
    wrong = shifted(cells, every, [0, 1, 2, 3])
    hits = 0
    for seed in range(50):
        found = together([g_test(c, cells) for c in draws(wrong, 500, 20, seed)])
        hits += found.p_value < 1e-5
    assert hits >= 47


@pytest.mark.parametrize("largest", [0.3, 0.5, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("distance", [0.01, 0.2, 0.5, 0.9])
def test_no_law_hides_below_the_least_divergence(largest: float, distance: float) -> None:
    bound, gen = least_divergence(largest, distance), torch.Generator().manual_seed(1)
    for _ in range(60):
        rest = torch.rand(6, generator=gen, dtype=torch.float64) ** 3
        cells = torch.cat([law(largest), rest / rest.sum() * (1 - largest) / largest * largest])
        cells[0] = largest
        if float(cells[1:].max()) > largest:
            continue
        up = (torch.rand(7, generator=gen) < 0.5).nonzero()[:, 0].tolist()
        if not up or len(up) == 7 or float(cells[up].sum()) + distance >= 1:
            continue
        wrong = shifted(cells, distance, up)
        divergence = float(torch.xlogy(wrong, wrong / cells).sum())
        assert divergence >= bound * (1 - 1e-3)


def test_a_test_without_freedom_finds_nothing() -> None:
    counts = torch.tensor([100.0, 0.0], dtype=torch.float64)
    assert detectable_distance([g_test(counts, law(1.0, 1e-6))], 1e-5) is None
    few = g_test(torch.tensor([10.0, 10.0], dtype=torch.float64), law(1, 1))
    assert few.freedom == 1  # at most G = 2 * 20 * ln 2 = 28, p = 1e-7
    assert detectable_distance([few], 1e-9) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_an_impossible_token_makes_the_whole_impossible() -> None:
    good = g_test(torch.tensor([50.0, 50.0], dtype=torch.float64), law(1, 1))
    bad = g_test(torch.tensor([99.0, 1.0], dtype=torch.float64), law(1.0, 0.0))
    found: GTest = together([good, bad])
    assert (found.p_value, found.num_impossible, found.num) == (0.0, 1, 200)
