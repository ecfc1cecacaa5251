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
#: Share of the tokens that may be lost by asking a drafter again that does not pay.
_PROBE_SHARE = 0.01
#: Cycles at least between two such.
_PROBE_GAP = 8
#: Drafter's passes that tell what one costs: the first also makes its layers.
_NUM_TIMED = 2


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


class DraftBudget:
    """Chooses lengths, cycle by cycle. Kept as long as its engine: what it learns stays true."""

    def __init__(self) -> None:
        self._acceptance = Acceptance()
        self._costs: dict[bool, _KindCosts] = {}
        self._rate = 0.0
        self._credit, self._num_idle = 0.0, 0

    def plan(self, rows: Sequence[RowLoad], kind: PassKind) -> Lens:
        """The lengths of the next cycle; one row takes all there is."""
        chances = [self._chance(row, kind, is_alone=len(rows) == 1) for row in rows]
        known = self._costs.setdefault(kind.wants_logits, _KindCosts())
        longest = max((max(len(c.looked_up), len(c.drafted)) for c in chances), default=0)
        costs = _costs(known, len(rows), kind)
        if len(rows) > 1 and self._is_first(known, len(rows)):
            known.num_first += 1
            most = 0 if known.last_rows > len(rows) else _FIRST_LEN
            return most_tokens([_cut(chance, most) for chance in chances], costs, longest)
        best = best_lens(chances, costs, self._rate, longest)
        self._rate = best.rate
        if any(best.drafted) or not any(chance.drafted for chance in chances):
            self._credit, self._num_idle = 0.0, 0
            return best
        self._num_idle += 1
        if self._num_idle > _PROBE_GAP:
            probe = best_lens_drafting(chances, costs, best.rate, longest)
            lost = best.rate * probe.ms - probe.num_tokens
            if self._credit >= lost or known.draft.num_seen < _NUM_TIMED:
                self._credit, self._num_idle = 0.0, 0
                return probe
        self._credit += _PROBE_SHARE * best.num_tokens
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
        num_drafting = sum(1 for n in lens.drafted if n)
        if num_drafting and known.verify.num_seen:
            known.draft.note(num_drafting, draft_ms / known.verify.ms(len(rows)))
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

    def _chance(self, row: RowLoad, kind: PassKind, is_alone: bool) -> RowChance:
        num_found, num_drafted = len(row.found_ids), min(row.limit, kind.num_draft_tokens)
        look, own = self._acceptance.survival, row.acceptance
        return RowChance(
            looked_up=look(own, row.is_greedy, max(row.match_len, 1), num_found),
            drafted=look(own, row.is_greedy, 0, num_drafted),
            is_fixed=row.is_fixed or is_alone,
        )

    def _is_first(self, known: _KindCosts, num_rows: int) -> bool:
        """Whether too little is known of what a row costs."""
        return known.num_first < _NUM_FIRST and not known.verify.is_slope_known(num_rows)


def _costs(known: _KindCosts, num_rows: int, kind: PassKind) -> Costs:
    unit = known.verify.ms(num_rows)
    return Costs(
        fixed_ms=known.verify.fixed_ms,
        row_ms=known.verify.row_ms,
        draft_fixed_ms=known.draft.fixed_ms * unit,
        draft_row_ms=known.draft.row_ms * unit,
        is_padded=kind.is_padded,
    )


def _cut(chance: RowChance, most: int) -> RowChance:
    if chance.is_fixed:
        return chance
    return RowChance(chance.looked_up[:most], chance.drafted[:most])
