"""How much of a block to draft and to verify, by what it costs under this load and what it brings.

One request alone leaves room in every pass, and takes whole blocks. Several fill it: from some
number of rows on each row of a pass costs time, and a draft must be likely enough to stand. The
budget learns from every cycle what a row costs and how often drafts stood, and chooses lengths that
make most tokens a millisecond: a few slots, looked-up ones alone, or none at all.

A length depends on committed tokens, on the load and on times, never on the drafts it cuts nor on
what the target says of them: so the law of the output is the target's, whatever is learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from blockdraft.verification.acceptance import Acceptance, RowAcceptance
from blockdraft.verification.cost_model import PassCost
from blockdraft.verification.draft_lens import (
    Costs,
    Lens,
    RowChance,
    best_lens,
    best_lens_drafting,
    most_tokens,
)

#: Tokens drafted in the first cycle of all: enough to learn from, few enough to cost little.
_FIRST_LEN = 2
#: Cycles at most that are spent on learning what a row costs.
_NUM_FIRST = 4
#: What drafting must gain to be worth looking for: as much as looking and choosing cost.
_LEAST_GAIN = 0.05
#: Weight of the last cycle's in the mean gain, and what is believed of it at first.
_GAIN_WEIGHT, _FIRST_GAIN = 0.15, 0.1
#: Cycles without looking where it gained less.
_REST = 8
#: Share of the tokens that may be lost by asking a drafter again that does not pay, and cycles at
#: least between two such.
_PROBE_SHARE = 0.005
_PROBE_GAP = 8
#: Drafter's passes that tell what one costs. The very first tells nothing: it makes the layers too.
_NUM_TIMED = 1


@dataclass(frozen=True)
class RowLoad:
    """A running request, as the budget sees it.

    Attributes:
        limit: most tokens worth drafting.
        is_greedy: its kind of acceptance.
        is_fixed: its lengths may not depend on the load; it takes all there is.
        acceptance: what was learnt of it; kept with the request.
        found_ids: continuation of its text, `limit` tokens at most; empty if there is none.
        match_len: tokens that the continuation rests on.
    """

    limit: int
    is_greedy: bool
    is_fixed: bool
    acceptance: RowAcceptance
    found_ids: Sequence[int] = ()
    match_len: int = 0


@dataclass(frozen=True, kw_only=True)
class PassKind:
    """What else a pass depends on.

    Attributes:
        num_draft_tokens: most that the drafter's model drafts; 0 if it has none.
        is_padded: a pass costs as many rows for each sequence as for the longest.
        wants_logits: it writes logits, which costs more a row.
    """

    num_draft_tokens: int
    is_padded: bool
    wants_logits: bool


@dataclass(frozen=True)
class RowOutcome:
    """What came of a row: drafts that were verified and accepted, and what was committed."""

    drafted_len: int
    accepted_len: int
    committed_ids: Sequence[int]


@dataclass
class _KindCosts:
    """Of one kind of passes. The drafter's is in units of a pass without drafts: a machine that
    becomes slower does so for both, also while nothing is drafted."""

    verify: PassCost = field(default_factory=PassCost)
    draft: PassCost = field(default_factory=PassCost)
    num_first: int = 0
    last_rows: int = 0
    has_drafted: bool = False


class DraftBudget:
    """Chooses lengths, cycle by cycle. Kept as long as its engine: what it learns stays true."""

    def __init__(self) -> None:
        self._acceptance = Acceptance()
        self._costs: dict[bool, _KindCosts] = {}
        self._rate = 0.0
        self._credit, self._num_idle = 0.0, 0
        self._rest: tuple[int, PassKind] | None = None
        self._num_rests = 0
        self._gain = _FIRST_GAIN

    def rests(self, num_rows: int, kind: PassKind) -> bool:
        """Whether the next cycle is to draft nothing, without a plan; a new load ends the rest.

        Not for rows whose lengths may not depend on the load.
        """
        if self._rest != (num_rows, kind) or self._num_rests >= _REST:
            self._rest = None
            return False
        self._num_rests += 1
        return True

    def plan(self, rows: Sequence[RowLoad], kind: PassKind) -> Lens:
        """The lengths of the next cycle; one row takes all there is."""
        known = self._costs.setdefault(kind.wants_logits, _KindCosts())
        # Half of the price of a row in the cycle before.
        least = 0.0 if kind.is_padded else self._rate * known.verify.row_ms / 2
        chances = [self._chance(row, kind, len(rows) == 1, least) for row in rows]
        longest = max((max(len(c.looked_up), len(c.drafted)) for c in chances), default=0)
        costs = _costs(known, len(rows), kind)
        if len(rows) > 1 and self._is_first(known, len(rows)):
            known.num_first += 1
            most = 0 if known.last_rows > len(rows) else _FIRST_LEN
            return most_tokens([_cut(chance, most) for chance in chances], costs, longest)
        best = best_lens(chances, costs, self._rate, longest)
        self._rate = best.rate if known.verify.num_seen else 0.0
        if not any(chance.is_fixed for chance in chances):
            best = self._rested(best, most_tokens([_cut(c, 0) for c in chances], costs, 0), kind)
        return self._probed(best, chances, costs, longest, known)

    def _rested(self, best: Lens, plain: Lens, kind: PassKind) -> Lens:
        """What drafting gains must pay for looking for drafts; else nothing is looked for."""
        self._gain += _GAIN_WEIGHT * (best.rate / plain.rate - 1.0 - self._gain)
        if self._gain >= _LEAST_GAIN or best.rate >= (1.0 + _LEAST_GAIN) * plain.rate:
            return best
        self._rest = len(plain.drafted), kind
        return plain

    def _probed(
        self,
        best: Lens,
        chances: Sequence[RowChance],
        costs: Costs,
        longest: int,
        known: _KindCosts,
    ) -> Lens:
        """What does not pay is asked again when that loses little enough of what was made since."""
        num_rests, self._num_rests = self._num_rests, 0
        if any(best.drafted) or not any(chance.drafted for chance in chances):
            self._credit, self._num_idle = 0.0, 0
            return best
        self._num_idle += 1 + num_rests
        if self._num_idle > _PROBE_GAP:
            probe = best_lens_drafting(chances, costs, best.rate, longest)
            lost = best.rate * probe.ms - probe.num_tokens
            if self._credit >= lost or known.draft.num_seen < _NUM_TIMED:
                self._credit, self._num_idle = 0.0, 0
                return probe
        self._credit += _PROBE_SHARE * best.num_tokens * (1 + num_rests)
        return best

    def note(
        self,
        rows: Sequence[RowLoad],
        kind: PassKind,
        lens: Lens,
        outcomes: Sequence[RowOutcome],
        pass_ms: float,
        draft_ms: float,
    ) -> None:
        """Learn from a cycle.

        Args:
            pass_ms, draft_ms: time of the drafter's pass, and of all the rest of the cycle.
        """
        known = self._costs.setdefault(kind.wants_logits, _KindCosts())
        drafted = [outcome.drafted_len for outcome in outcomes]
        places = len(rows) * max(drafted) if kind.is_padded else sum(drafted)
        known.last_rows = len(rows) + places
        known.verify.note(known.last_rows, pass_ms)
        if any(lens.drafted) and known.verify.num_seen:
            if known.has_drafted:
                known.draft.note(len(rows), draft_ms / known.verify.ms(len(rows)))
            known.has_drafted = True
        for row, outcome, n in zip(rows, outcomes, lens.drafted, strict=True):
            self._note_row(row, outcome, is_drafted=n > 0)

    def _note_row(self, row: RowLoad, outcome: RowOutcome, is_drafted: bool) -> None:
        """A continuation that was found says what it was worth whether it was verified or not."""
        committed = outcome.committed_ids
        if row.found_ids and committed:
            pairs = list(zip(row.found_ids, committed, strict=False))
            same = next((j for j, (a, b) in enumerate(pairs) if a != b), len(pairs))
            self._acceptance.note(
                row.acceptance, row.is_greedy, max(row.match_len, 1), same, len(pairs)
            )
        if is_drafted:
            self._acceptance.note(
                row.acceptance, row.is_greedy, 0, outcome.accepted_len, outcome.drafted_len
            )
        else:
            row.acceptance.drafted.fade()

    def _chance(self, row: RowLoad, kind: PassKind, is_alone: bool, least: float) -> RowChance:
        is_fixed = row.is_fixed or is_alone
        least = 0.0 if is_fixed else least
        num_found, num_drafted = len(row.found_ids), min(row.limit, kind.num_draft_tokens)
        look, own = self._acceptance.survival, row.acceptance
        return RowChance(
            looked_up=look(own, row.is_greedy, max(row.match_len, 1), num_found, least),
            drafted=look(own, row.is_greedy, 0, num_drafted, least),
            is_fixed=is_fixed,
        )

    def _is_first(self, known: _KindCosts, num_rows: int) -> bool:
        """Whether too little is known of what a row costs."""
        return known.num_first < _NUM_FIRST and not known.verify.is_slope_known(num_rows)


def _costs(known: _KindCosts, num_rows: int, kind: PassKind) -> Costs:
    unit = known.verify.ms(num_rows)
    return Costs(
        fixed_ms=known.verify.fixed_ms,
        row_ms=known.verify.row_ms,
        draft_ms=known.draft.ms(num_rows) * unit,
        is_padded=kind.is_padded,
    )


def _cut(chance: RowChance, most: int) -> RowChance:
    if chance.is_fixed:
        return chance
    return RowChance(chance.looked_up[:most], chance.drafted[:most])
