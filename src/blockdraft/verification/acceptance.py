"""How many tokens of a draft will stand, learnt from those before it.

A token of a draft is judged only if all before it stood, so what is counted is, for each slot, how
often it failed where it was reached. Slots that were reached seldom are taken to be like the one
before them. A request fails more or less often than others do: one factor on the odds, of which
little is believed until it has failed, or should have failed, a few times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

#: Longest suffix of a looked-up draft that is told from longer ones.
LONGEST_MATCH = 4

#: Of a slot nobody has reached, and how many drafts that belief is worth.
_FIRST_RATE, _WEIGHT = 0.5, 4.0
#: Share of the counts kept after each draft: of all requests together, and of one request.
_KEPT, _KEPT_OF_ROW = 0.998, 0.93
#: And of one request, after each cycle without such a draft.
_KEPT_UNSEEN = 0.97
#: Failures that the belief is worth that a request is like the others.
_ROW_WEIGHT = 4.0
_MOST_CERTAIN = 0.995


class SlotRates:
    """Share of failures of each slot, of the drafts of one kind; old drafts are forgotten."""

    def __init__(self) -> None:
        self._reached: list[float] = []
        self._failed: list[float] = []
        self._rates: list[float] = []  # until the next draft: many rows of a cycle ask

    def rates(self, length: int) -> list[float]:
        """Of the first `length` slots: how often each fails where it is reached."""
        for j in range(len(self._rates), length):
            before = self._rates[j - 1] if j else _FIRST_RATE
            if j < len(self._reached):
                failed = self._failed[j] + _WEIGHT * before
                before = failed / (self._reached[j] + _WEIGHT)
            self._rates.append(before)
        return self._rates[:length]

    def note(self, accepted_len: int, tried_len: int) -> None:
        """One draft: slots up to the first that failed were reached."""
        self._rates = []
        missing = min(accepted_len + 1, tried_len) - len(self._reached)
        self._reached.extend([0.0] * missing)
        self._failed.extend([0.0] * missing)
        for j in range(len(self._reached)):
            self._reached[j] *= _KEPT
            self._failed[j] *= _KEPT
        for j in range(min(accepted_len + 1, tried_len)):
            self._reached[j] += 1.0
        if accepted_len < tried_len:
            self._failed[accepted_len] += 1.0


@dataclass
class OwnOdds:
    """How much more often one request's drafts fail than those of all: a factor on the odds."""

    _failed: float = 0.0
    _expected: float = 0.0

    @property
    def factor(self) -> float:
        return (self._failed + _ROW_WEIGHT) / (self._expected + _ROW_WEIGHT)

    def note(self, accepted_len: int, tried_len: int, rates: Sequence[float]) -> None:
        """One draft, and how often all requests' slots fail."""
        reached = rates[: min(accepted_len + 1, tried_len)]
        self._failed = self._failed * _KEPT_OF_ROW + (accepted_len < tried_len)
        self._expected = self._expected * _KEPT_OF_ROW + sum(reached)

    def fade(self) -> None:
        """A cycle without a draft: what was seen counts for less, so that none is given up."""
        self._failed *= _KEPT_UNSEEN
        self._expected *= _KEPT_UNSEEN


@dataclass(frozen=True)
class RowAcceptance:
    """What is known of one request's drafts: the model's, and those looked up."""

    drafted: OwnOdds = field(default_factory=OwnOdds)
    looked_up: OwnOdds = field(default_factory=OwnOdds)

    def of(self, match_len: int) -> OwnOdds:
        """By what a draft rests on (see `Acceptance`)."""
        return self.looked_up if match_len else self.drafted


class Acceptance:
    """Of all requests that an engine has served, by what a draft rests on.

    `match_len` is the number of tokens whose continuation was looked up, or 0 for the drafts of a
    model. Greedy and sampled requests are counted apart.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[bool, int], SlotRates] = {}

    def survival(
        self,
        row: RowAcceptance,
        is_greedy: bool,
        match_len: int,
        length: int,
        least: float = 0.0,
    ) -> list[float]:
        """Probability of each slot of a draft that it stands, and all before it.

        Slots behind the first that is below `least` are left out: nobody will want them.
        """
        factor, alive, out = row.of(match_len).factor, 1.0, []
        for rate in self._of(is_greedy, match_len).rates(length):
            failing = factor * rate / (factor * rate + 1.0 - rate)
            alive *= 1.0 - min(failing, _MOST_CERTAIN)
            out.append(alive)
            if alive < least:
                break
        return out

    def note(
        self, row: RowAcceptance, is_greedy: bool, match_len: int, accepted_len: int, tried_len: int
    ) -> None:
        """One draft of a request; one that tried nothing says nothing."""
        if tried_len:
            pool = self._of(is_greedy, match_len)
            row.of(match_len).note(accepted_len, tried_len, pool.rates(tried_len))
            pool.note(accepted_len, tried_len)

    def _of(self, is_greedy: bool, match_len: int) -> SlotRates:
        return self._rates.setdefault((is_greedy, min(match_len, LONGEST_MATCH)), SlotRates())
