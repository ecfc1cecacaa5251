"""How many drafts of each row to verify, so that a cycle makes most tokens a millisecond.

The rate is a quotient, but at a given rate r the best lengths are those with the most tokens less
r times the time, and that is a sum: a slot is worth its row exactly if its survival is greater
than the price of a row. The best rate is where the best lengths at that rate have that rate
(Dinkelbach 1967); a few rounds find it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Rounds after which the rate is taken as found: it grows every time, and from the third on hardly.
_MOST_ROUNDS = 8
#: A rate that is known so well: the error of the lengths is of its square.
_RATE_ERROR = 0.003
#: What a cycle takes at least: a rate is finite.
_SHORTEST_MS = 1e-9


@dataclass(frozen=True)
class Costs:
    """Of a cycle, in ms.

    Attributes:
        fixed_ms, row_ms: beside the drafter's pass, by the rows of the target's.
        draft_ms: the drafter's pass, which is over all rows, whoever has a use for it.
        is_padded: a pass costs as many rows for each sequence as for the longest.
    """

    fixed_ms: float
    row_ms: float
    draft_ms: float = 0.0
    is_padded: bool = False


@dataclass(frozen=True)
class RowChance:
    """Survival of each slot of a row's two possible drafts; never both are verified.

    Attributes:
        looked_up, drafted: empty where there is nothing to draft. They do not grow.
        is_fixed: the row takes all of what was looked up, else all that the model drafts.
    """

    looked_up: Sequence[float] = ()
    drafted: Sequence[float] = ()
    is_fixed: bool = False


@dataclass(frozen=True)
class Lens:
    """What is to be verified of each row: of one of the two drafts.

    Attributes:
        num_tokens: expected to be committed.
        ms: expected to be spent.
    """

    looked_up: tuple[int, ...]
    drafted: tuple[int, ...]
    num_tokens: float
    ms: float

    @property
    def rate(self) -> float:
        """Tokens a millisecond."""
        return self.num_tokens / max(self.ms, _SHORTEST_MS)


def best_lens(rows: Sequence[RowChance], costs: Costs, rate: float, longest: int) -> Lens:
    """The lengths with the greatest rate, with or without the drafter's pass.

    Args:
        rate: a guess to begin with: that of the cycle before, or 0.
        longest: no draft is longer.
    """
    best = _best_of(_at_rate(rows, costs, rate, longest), rate)
    for _ in range(_MOST_ROUNDS):
        if math.isclose(best.rate, rate, rel_tol=_RATE_ERROR):
            break
        rate = best.rate
        best = _best_of(_at_rate(rows, costs, rate, longest), rate)
    return best


def most_tokens(rows: Sequence[RowChance], costs: Costs, longest: int) -> Lens:
    """The lengths that commit most, whatever they cost."""
    return _best_of(_at_rate(rows, costs, 0.0, longest), 0.0)


def best_lens_drafting(rows: Sequence[RowChance], costs: Costs, rate: float, longest: int) -> Lens:
    """As `best_lens` at a known rate, but each row that can has at least one draft of the model.

    Rows with a continuation of their text keep it where they have a use for it.
    """
    free = Costs(costs.fixed_ms, costs.row_ms, is_padded=costs.is_padded)
    lens = _best_of(_at_rate(rows, free, rate, longest), rate)
    chosen = [
        (n, max(m, 1) if row.drafted and not n else m)
        for row, n, m in zip(rows, lens.looked_up, lens.drafted, strict=True)
    ]
    return _lens(rows, costs, chosen)


def _best_of(candidates: Iterable[Lens], rate: float) -> Lens:
    return max(candidates, key=lambda lens: lens.num_tokens - rate * lens.ms)


def _at_rate(rows: Sequence[RowChance], costs: Costs, rate: float, longest: int) -> Iterator[Lens]:
    """Candidates of which one is best at this rate: without the drafter's pass, and with it.

    Padded passes pay for their longest row, and the others are as long as that for nothing; so
    there is one candidate for each length.
    """
    price = 0.0 if costs.is_padded else rate * costs.row_ms
    for most in range(longest + 1) if costs.is_padded else (longest,):
        options = [_options(row, price, most) for row in rows]
        without = [(0, m) if choice == _BOUND else (n, 0) for n, m, choice in options]
        yield _lens(rows, costs, without)
        if any(choice == _BETTER for _, _, choice in options):
            yield _lens(rows, costs, [(0, m) if choice else (n, 0) for n, m, choice in options])


#: The model's draft of a row: not worth its rows, better than what was looked up, or a must.
_WORSE, _BETTER, _BOUND = 0, 1, 2


def _options(row: RowChance, price: float, most: int) -> tuple[int, int, int]:
    """Slots of either draft that are worth their price, and what to think of the model's."""
    if row.is_fixed:
        n = len(row.looked_up)
        return n, len(row.drafted), _WORSE if n else _BOUND
    n, gain = _worth(row.looked_up[:most], price)
    m, gain_drafted = _worth(row.drafted[:most], price)
    return n, m, _BETTER if gain_drafted > gain else _WORSE


def _worth(survival: Sequence[float], price: float) -> tuple[int, float]:
    """Slots that are worth a row each, and what they gain together."""
    gain, n = 0.0, 0
    for alive in survival:
        if alive <= price:
            break
        gain += alive - price
        n += 1
    return n, gain


def _lens(rows: Sequence[RowChance], costs: Costs, chosen: Sequence[tuple[int, int]]) -> Lens:
    """Slots looked up and drafted of each row, with what they bring and cost."""
    tokens, places, longest, is_drafting = float(len(rows)), 0, 0, False
    for row, (n, m) in zip(rows, chosen, strict=True):
        if n or m:
            tokens += sum(row.looked_up[:n]) + sum(row.drafted[:m])
            places += n + m
            longest = max(longest, n + m)
            is_drafting |= m > 0
    if costs.is_padded:
        places = len(rows) * longest
    ms = costs.fixed_ms + costs.row_ms * (len(rows) + places)
    if is_drafting:
        ms += costs.draft_ms
    looked_up, drafted = zip(*chosen, strict=True)
    return Lens(looked_up, drafted, tokens, ms)
