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
#: What a cycle takes at least: a rate is finite.
_SHORTEST_MS = 1e-9


@dataclass(frozen=True)
class Costs:
    """Of a cycle, in ms: beside the drafter's pass, and of that.

    Attributes:
        is_padded: a pass costs as many rows for each sequence as for the longest.
    """

    fixed_ms: float
    row_ms: float
    draft_fixed_ms: float = 0.0
    draft_row_ms: float = 0.0
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
        if math.isclose(best.rate, rate):
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
    lens = _best_of(list(_at_rate(rows, free, rate, longest))[1::2], rate)
    asked = tuple(
        max(n, 1) if row.drafted and not found else n
        for row, n, found in zip(rows, lens.drafted, lens.looked_up, strict=True)
    )
    return _lens(rows, costs, lens.looked_up, asked)


def _best_of(candidates: Iterable[Lens], rate: float) -> Lens:
    return max(candidates, key=lambda lens: lens.num_tokens - rate * lens.ms)


def _at_rate(rows: Sequence[RowChance], costs: Costs, rate: float, longest: int) -> Iterator[Lens]:
    """Candidates of which one is best at this rate: without the drafter's pass, and with it.

    Padded passes pay for their longest row, and the others are as long as that for nothing; so
    there is one candidate for each length.
    """
    price = 0.0 if costs.is_padded else rate * costs.row_ms
    for most in range(longest + 1) if costs.is_padded else (longest,):
        options = [_options(row, price, rate * costs.draft_row_ms, most) for row in rows]
        for has_pass in (False, True):
            chosen = [option.choose(has_pass) for option in options]
            looked_up, drafted = zip(*chosen, strict=True)
            yield _lens(rows, costs, looked_up, drafted)


@dataclass(frozen=True)
class _Options:
    """Of one row: slots of either draft that are worth their price, and whether to prefer which.

    `is_bound` to the model's draft with or without a pass of the others.
    """

    looked_up: int
    drafted: int
    is_better_drafted: bool
    is_bound: bool

    def choose(self, has_pass: bool) -> tuple[int, int]:
        """Slots looked up, and slots drafted."""
        if self.is_bound or (has_pass and self.is_better_drafted):
            return 0, self.drafted
        return self.looked_up, 0


def _options(row: RowChance, price: float, draft_price: float, most: int) -> _Options:
    if row.is_fixed:
        n = len(row.looked_up)
        return _Options(n, len(row.drafted), is_better_drafted=False, is_bound=not n)
    looked_up, gain = _worth(row.looked_up[:most], price)
    drafted, gain_drafted = _worth(row.drafted[:most], price)
    return _Options(looked_up, drafted, gain_drafted - draft_price > gain, is_bound=False)


def _worth(survival: Sequence[float], price: float) -> tuple[int, float]:
    """Slots that are worth a row each, and what they gain together."""
    gain, n = 0.0, 0
    for alive in survival:
        if alive <= price:
            break
        gain += alive - price
        n += 1
    return n, gain


def _lens(
    rows: Sequence[RowChance], costs: Costs, looked_up: tuple[int, ...], drafted: tuple[int, ...]
) -> Lens:
    tokens = float(len(rows))
    for row, n, m in zip(rows, looked_up, drafted, strict=True):
        tokens += sum(row.looked_up[:n]) + sum(row.drafted[:m])
    both = [n + m for n, m in zip(looked_up, drafted, strict=True)]
    places = len(rows) * max(both) if costs.is_padded else sum(both)
    ms = costs.fixed_ms + costs.row_ms * (len(rows) + places)
    num_drafting = sum(1 for m in drafted if m)
    if num_drafting:
        ms += costs.draft_fixed_ms + costs.draft_row_ms * num_drafting
    return Lens(looked_up, drafted, tokens, ms)
