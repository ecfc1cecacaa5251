"""Many drafted continuations of one text, through the engine that users run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockdraft.decoding.row import Row
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner
from blockdraft.errors import UserError
from blockdraft.types import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What drafting did in the tested tokens: a branch that never ran was not tested.

    Attributes:
        cycles: of which `drafted_cycles` had drafts.
        accepted, rejected: drafted tokens that stood, and cycles in which one was refused.
        completed: cycles whose drafts all stood, so that a bonus token followed.
    """

    cycles: int = 0
    drafted_cycles: int = 0
    accepted: int = 0
    rejected: int = 0
    completed: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(**{name: value + vars(other)[name] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Sample:
    """Token sequences of requests that differ in their seed only; ends may cut one short."""

    sequences: tuple[tuple[int, ...], ...]
    coverage: Coverage


def draw_sample(
    llm: LLM,
    prefix: Sequence[int],
    params: SamplingParams,
    *,
    seeds: range,
    depth: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Sample:
    """Continue `prefix` once for each seed, by at least `depth` tokens, of which `depth` are kept.

    Every other request ends at the kept tokens: its drafts are cut short by the limit, and the
    bonus token behind them is among the kept ones. The others draft whole blocks.

    Args:
        advance: told of each finished request.
    Raises: UserError if a request fails.
    """
    room = 0 if llm.drafter is None else llm.drafter.num_draft_tokens
    lengths = (depth + room + 1, depth)
    each = [
        SamplingParams(**{**vars(params), "seed": seed, "max_tokens": lengths[i % 2]})
        for i, seed in enumerate(seeds)
    ]
    rows = llm.rows([list(prefix)] * len(seeds), each)
    runner = Runner(llm.target, llm.drafter, rows, llm.limits)
    for changed in runner.run():
        for i in changed:
            if not rows[i].is_finished and len(rows[i].output_ids) >= depth:
                runner.cancel(i)
            if rows[i].is_finished:
                advance(1)
    failed = next((row.error for row in rows if row.finish_reason == "error"), None)
    if failed is not None:
        raise UserError(f"a sampled request failed, so its law cannot be tested: {failed}")
    coverage = sum((_coverage(row, depth) for row in rows), Coverage())
    return Sample(tuple(tuple(row.output_ids[:depth]) for row in rows), coverage)


def _coverage(row: Row, depth: int) -> Coverage:
    """Of the cycles that begin within the kept tokens; the first token is the prompt's pass."""
    found, begin = Coverage(), 1
    for cycle in row.cycles:
        if begin >= depth:
            break
        kept = min(cycle.accepted_len, depth - begin)
        is_judged = cycle.drafted_len > 0 and begin + cycle.accepted_len < depth
        is_refused = is_judged and cycle.accepted_len < cycle.drafted_len
        found += Coverage(
            cycles=1,
            drafted_cycles=int(cycle.drafted_len > 0),
            accepted=kept,
            rejected=int(is_refused and len(cycle.committed_ids) > cycle.accepted_len),
            completed=int(is_judged and not is_refused),
        )
        begin += len(cycle.committed_ids)
    return found
