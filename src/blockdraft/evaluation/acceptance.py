"""Acceptance figures from what each cycle did. Every figure is defined in `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockdraft.errors import ConfigError
from blockdraft.evaluation.bootstrap import Interval, ratio_interval
from blockdraft.types import Cycle


class CycleCounts(NamedTuple):
    """One cycle of one answer, in tokens."""

    drafted: int
    accepted: int
    committed: int

    @classmethod
    def of(cls, cycle: Cycle) -> CycleCounts:
        """The counts of a cycle of the loop."""
        return cls(cycle.drafted_len, cycle.accepted_len, len(cycle.committed_ids))

    @property
    def is_cut(self) -> bool:
        """A stop or the limit ended it within the accepted tokens: none was refused."""
        return self.committed <= self.accepted


#: The cycles of one answer.
Cycles = Sequence[CycleCounts]


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What drafting did over many answers.

    Attributes:
        tau: mean over answers of committed tokens per cycle; None without cycles.
        tau_pooled: all committed tokens over all cycles.
        tau_ci95, tau_pooled_ci95: their intervals, by prompt.
        accepted_by_position, drafted_by_position: cycles in which slot j was committed, drafted.
        acceptance_by_position: accepted over drafted.
        conditional_acceptance_by_position: of the cycles in which slot j was judged (drafted, all
            before it accepted, and the answer not cut there), the share that accepted it.
        committed_histogram: entry n counts the cycles that committed n tokens.
    """

    cycles: int
    drafted: int
    accepted: int
    committed: int
    tau: float | None
    tau_ci95: Interval | None
    tau_pooled: float | None
    tau_pooled_ci95: Interval | None
    accepted_by_position: tuple[int, ...]
    drafted_by_position: tuple[int, ...]
    acceptance_by_position: tuple[float | None, ...]
    conditional_acceptance_by_position: tuple[float | None, ...]
    committed_histogram: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON keys of a result row."""
        return dict(vars(self))


def acceptance(prompts: Sequence[Sequence[Cycles]]) -> Acceptance:
    """Figures of the answers of each prompt (one for each turn)."""
    answers = [cycles for answers in prompts for cycles in answers if cycles]
    every = [cycle for cycles in answers for cycle in cycles]
    width = max((cycle.drafted for cycle in every), default=0)
    accepted = tuple(sum(c.accepted > j for c in every) for j in range(width))
    drafted = tuple(sum(c.drafted > j for c in every) for j in range(width))
    judged = tuple(sum(_is_judged(c, j) for c in every) for j in range(width))
    top = max((c.committed for c in every), default=-1)
    committed = sum(c.committed for c in every)
    by_answer = [[_tau(cycles) for cycles in answers if cycles] for answers in prompts]
    by_prompt = [[c for cycles in answers for c in cycles] for answers in prompts]
    return Acceptance(
        cycles=len(every),
        drafted=sum(c.drafted for c in every),
        accepted=sum(c.accepted for c in every),
        committed=committed,
        tau=_ratio(sum(map(sum, by_answer)), len(answers)),
        tau_ci95=ratio_interval([sum(t) for t in by_answer], [len(t) for t in by_answer]),
        tau_pooled=_ratio(committed, len(every)),
        tau_pooled_ci95=ratio_interval(
            [sum(c.committed for c in own) for own in by_prompt], [len(own) for own in by_prompt]
        ),
        accepted_by_position=accepted,
        drafted_by_position=drafted,
        acceptance_by_position=tuple(map(_ratio, accepted, drafted)),
        conditional_acceptance_by_position=tuple(map(_ratio, accepted, judged)),
        committed_histogram=tuple(sum(c.committed == n for c in every) for n in range(top + 1)),
    )


def _is_judged(cycle: CycleCounts, slot: int) -> bool:
    if slot < cycle.accepted:
        return True
    return slot == cycle.accepted < cycle.drafted and not cycle.is_cut


def _tau(cycles: Cycles) -> float:
    return sum(cycle.committed for cycle in cycles) / len(cycles)


def _ratio(top: float, bottom: float) -> float | None:
    return top / bottom if bottom else None


def predicted_speedup(
    *, tau: float, plain_ms: float, draft_ms: float, verify_ms: float, other_ms: float
) -> float:
    """Speed-up over plain decoding: plain_ms * tau / (draft_ms + verify_ms + other_ms).

    Args:
        tau: committed tokens a cycle, at least 0.
        plain_ms: time of a plain token.
        draft_ms, verify_ms, other_ms: parts of a cycle (`draft_ms` with the selection).
    Raises: ConfigError for values that no run can have.
    """
    costs = {"plain_ms": plain_ms, "verify_ms": verify_ms}
    for name, value in costs.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; it must be a number greater than 0")
    for name, value in {"tau": tau, "draft_ms": draft_ms, "other_ms": other_ms}.items():
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{name} is {value}; it must be a number of 0 or more")
    return plain_ms * tau / (draft_ms + verify_ms + other_ms)
