"""A machine and drafters made of numbers: cycles of a draft budget without any model or clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from blockdraft.verification.acceptance import RowAcceptance
from blockdraft.verification.budget import DraftBudget, PassKind, RowLoad, RowOutcome
from blockdraft.verification.draft_lens import Costs, Lens, RowChance, best_lens

NUM_DRAFT = 7
KIND = PassKind(num_draft_tokens=NUM_DRAFT, is_padded=False, wants_logits=False)


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true: costs in ms, and how likely a slot stands that is reached.

    Attributes:
        drafted, looked_up: of the model's slots, and of looked-up ones.
        found: how likely a text goes on as it did before.
        noise, busy: relative spread of times; how likely others run beside a pass (5 times slower).
    """

    fixed_ms: float = 12.0
    row_ms: float = 0.35
    draft_fixed_ms: float = 2.0
    draft_row_ms: float = 0.5
    drafted: float = 0.5
    looked_up: float = 0.7
    found: float = 0.0
    noise: float = 0.05
    busy: float = 0.0
    kind: PassKind = KIND

    def costs(self, num_rows: int) -> Costs:
        draft_ms = self.draft_fixed_ms + self.draft_row_ms * num_rows
        return Costs(self.fixed_ms, self.row_ms, draft_ms, self.kind.is_padded)

    def chance(self, is_found: bool) -> RowChance:
        """True survival of a row's slots."""
        k = NUM_DRAFT if is_found else 0
        looked_up = [self.looked_up ** (j + 1) for j in range(k)]
        num_drafted = min(NUM_DRAFT, self.kind.num_draft_tokens)
        return RowChance(looked_up, [self.drafted ** (j + 1) for j in range(num_drafted)])


@dataclass
class Run:
    """Rows that run until each has its tokens, `ms` and `num_tokens` added up."""

    world: World
    num_rows: int
    budget: DraftBudget | None
    seed: int = 0
    ms: float = 0.0
    num_tokens: int = 0
    plans: list[Lens] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.rows = [RowAcceptance() for _ in range(self.num_rows)]

    def cycles(self, number: int) -> Run:
        """So many cycles of all rows; without a budget each by the best lengths there are."""
        for _ in range(number):
            found = [self.dice.random() < self.world.found for _ in self.rows]
            loads = [
                RowLoad(NUM_DRAFT, True, False, row, range(NUM_DRAFT) if is_found else (), 2)
                for row, is_found in zip(self.rows, found, strict=True)
            ]
            if self.budget is None:
                chances = [self.world.chance(is_found) for is_found in found]
                lens = best_lens(chances, self.world.costs(self.num_rows), 0.0, NUM_DRAFT)
            elif self.budget.rests(self.num_rows, self.world.kind):
                nothing = (0,) * self.num_rows
                self._run(loads, Lens(nothing, nothing, 0.0, 0.0), is_planned=False)
                continue
            else:
                lens = self.budget.plan(loads, self.world.kind)
            self._run(loads, lens)
        return self

    def _run(self, loads: Sequence[RowLoad], lens: Lens, is_planned: bool = True) -> None:
        outcomes = [
            self._outcome(load, n, m)
            for load, n, m in zip(loads, lens.looked_up, lens.drafted, strict=True)
        ]
        sizes = [outcome.drafted_len for outcome in outcomes]
        rows = len(sizes) + (len(sizes) * max(sizes) if self.world.kind.is_padded else sum(sizes))
        costs = self.world.costs(self.num_rows)
        pass_ms = self._time(costs.fixed_ms + costs.row_ms * rows)
        draft_ms = 0.0
        if any(lens.drafted):
            draft_ms = self._time(costs.draft_ms)
        self.ms += pass_ms + draft_ms
        self.num_tokens += sum(len(outcome.committed_ids) for outcome in outcomes)
        self.plans.append(lens)
        if self.budget is not None and is_planned:
            self.budget.note(loads, self.world.kind, lens, outcomes, pass_ms, draft_ms)

    def _outcome(self, load: RowLoad, looked_up: int, drafted: int) -> RowOutcome:
        """Tokens that stand are those of the continuation; what corrects a draft is none of them.

        Whether a continuation would have stood is seen though nothing was verified, as in a text.
        """
        likely = self.world.looked_up if looked_up or not drafted else self.world.drafted
        num, right = max(looked_up, drafted), 0
        while right < num and self.dice.random() < likely:
            right += 1
        ids = list(range(right))
        next_is_found = load.found_ids and right == num and self.dice.random() < likely
        return RowOutcome(num, right, [*ids, right if next_is_found else -1])

    def _time(self, ms: float) -> float:
        busy = 5.0 if self.dice.random() < self.world.busy else 1.0
        return ms * busy * self.dice.lognormvariate(0.0, self.world.noise)


def rate(world: World, num_rows: int, budget: DraftBudget | None, cycles: int) -> float:
    """Tokens a millisecond, in times without noise from outside."""
    run = Run(world, num_rows, budget).cycles(cycles)
    quiet = Run(replace(world, noise=0.0, busy=0.0), num_rows, None)
    costs = world.costs(num_rows)
    ms = 0.0
    for lens in run.plans:
        both = [a + b for a, b in zip(lens.looked_up, lens.drafted, strict=True)]
        places = num_rows * max(both) if world.kind.is_padded else sum(both)
        ms += quiet._time(costs.fixed_ms + costs.row_ms * (num_rows + places))
        if any(lens.drafted):
            ms += quiet._time(costs.draft_ms)
    return run.num_tokens / ms


def plain_rate(world: World, num_rows: int) -> float:
    """Tokens a millisecond of plain decoding."""
    return num_rows / (world.fixed_ms + world.row_ms * num_rows)


class RandomBudget(DraftBudget):
    """Lengths thrown with dice: of what was looked up, of what the model drafts, or none."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)
        self.plans: list[Lens] = []

    def rests(self, num_rows: int, kind: PassKind) -> bool:
        return self._dice.random() < 0.1

    def plan(self, rows: Sequence[RowLoad], kind: PassKind) -> Lens:
        looked_up, drafted = [], []
        for row in rows:
            found, most = len(row.found_ids), min(row.limit, kind.num_draft_tokens)
            takes_found = bool(found) and self._dice.random() < 0.6
            looked_up.append(self._dice.randint(0, found) if takes_found else 0)
            drafted.append(0 if takes_found else self._dice.randint(0, most))
        self.plans.append(Lens(tuple(looked_up), tuple(drafted), 1.0, 1.0))
        return self.plans[-1]


class TimedBudget(DraftBudget):
    """The real budget with the times of a world in place of the clock's."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.plans: list[Lens] = []

    def plan(self, rows: Sequence[RowLoad], kind: PassKind) -> Lens:
        self.plans.append(super().plan(rows, kind))
        return self.plans[-1]

    def note(
        self,
        rows: Sequence[RowLoad],
        kind: PassKind,
        lens: Lens,
        outcomes: Sequence[RowOutcome],
        pass_ms: float,
        draft_ms: float,
    ) -> None:
        world = self.world
        drafted = [outcome.drafted_len for outcome in outcomes]
        places = len(drafted) * max(drafted) if kind.is_padded else sum(drafted)
        pass_ms = world.fixed_ms + world.row_ms * (len(drafted) + places)
        draft_ms = world.costs(len(drafted)).draft_ms if any(lens.drafted) else 0.0
        super().note(rows, kind, lens, outcomes, pass_ms, draft_ms)
