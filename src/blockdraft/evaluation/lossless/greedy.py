"""Greedy texts with and without drafts, token for token, and what made the first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockdraft.decoding.row import Row
from blockdraft.engine.llm import LLM
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.evaluation.lossless.law import LawAfter
from blockdraft.evaluation.lossless.rounding import is_bit_exact, tie_bound
from blockdraft.types import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """Where two greedy texts part.

    Attributes:
        position: of the first token that differs, 0 is the answer's first.
        cycle, slot: which cycle of the drafted run committed it, and at which place of what that
            cycle committed; cycle 0 is the prompt's pass.
        is_draft: it was an accepted draft, not the target's own token behind the drafts.
        plain_id, drafted_id: the two tokens; None where one text has ended.
        top_ids, gap: the target's two best tokens there, in a pass over the text alone, and the
            difference of their logits.
        bound: differences up to this are rounding (`rounding.tie_bound`).
        is_tie: the gap is within the bound and both tokens are the two best.
    """

    prompt_id: str
    position: int
    cycle: int
    slot: int
    is_draft: bool
    plain_id: int | None
    drafted_id: int | None
    top_ids: tuple[int, int]
    gap: float
    bound: float
    is_tie: bool


@dataclass(frozen=True, kw_only=True)
class GreedyResult:
    """Greedy texts of one dtype. `accepted` drafts were in them: 0 says little."""

    dtype: str
    kernels: str
    is_bit_exact: bool
    num_prompts: int
    num_tokens: int
    accepted: int
    divergences: tuple[Divergence, ...]
    errors: tuple[str, ...]

    @property
    def num_faults(self) -> int:
        """Differences that rounding does not explain, and requests that failed."""
        return len(self.errors) + sum(not found.is_tie for found in self.divergences)


def check_greedy(
    plain: LLM,
    drafted: LLM,
    prompts: Sequence[tuple[str, Sequence[int]]],
    max_tokens: int,
    advance: Callable[[int], None] = lambda _: None,
) -> GreedyResult:
    """Answer prompts plainly, one at a time, and with drafts, several at once; compare.

    Args:
        plain, drafted: engines of one target, without and with a drafter.
        advance: told of each finished answer.
    """
    limits = RunnerLimits(max_batch_size=1, prefill_chunk_len=plain.limits.prefill_chunk_len)
    alone = LLM.from_parts(plain.loaded, None, limits)
    params = SamplingParams(max_tokens=max_tokens)
    plain_rows = _run(alone, prompts, params, advance)
    rows = _run(drafted, prompts, params, advance)
    divergences, errors = [], []
    for (prompt_id, ids), one, other in zip(prompts, plain_rows, rows, strict=True):
        errors += [f"{prompt_id}: {row.error}" for row in (one, other) if row.error]
        found = None if one.error or other.error else _compare(drafted, prompt_id, ids, one, other)
        if found is not None:
            divergences.append(found)
    return GreedyResult(
        dtype=str(plain.target.info.dtype).removeprefix("torch."),
        kernels=plain.loaded.kernels,
        is_bit_exact=is_bit_exact(plain),
        num_prompts=len(prompts),
        num_tokens=sum(len(row.output_ids) for row in rows),
        accepted=sum(cycle.accepted_len for row in rows for cycle in row.cycles),
        divergences=tuple(divergences),
        errors=tuple(errors),
    )


def _run(
    llm: LLM,
    prompts: Sequence[tuple[str, Sequence[int]]],
    params: SamplingParams,
    advance: Callable[[int], None],
) -> list[Row]:
    rows = llm.rows([list(ids) for _, ids in prompts], params)
    for changed in Runner(llm.target, llm.drafter, rows, llm.limits).run():
        advance(sum(rows[i].is_finished for i in changed))
    return rows


def _compare(
    llm: LLM, prompt_id: str, prompt: Sequence[int], plain: Row, drafted: Row
) -> Divergence | None:
    one, other = plain.output_ids, drafted.output_ids
    if one == other:
        return None
    shorter = min(len(one), len(other))
    position = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    cycle, slot, is_draft = locate(drafted, position)
    logits = LawAfter(llm.target, prompt, position + 1).logits(one[:position])
    values, ids = logits.double().topk(2)
    gap, bound = float(values[0] - values[1]), tie_bound(llm, float(values[0]))
    plain_id, drafted_id = (ids[position : position + 1] for ids in (one, other))
    top_ids = (int(ids[0]), int(ids[1]))
    is_tie = gap <= bound and bound > 0.0 and {*plain_id, *drafted_id} <= set(top_ids)
    return Divergence(
        prompt_id=prompt_id,
        position=position,
        cycle=cycle,
        slot=slot,
        is_draft=is_draft,
        plain_id=plain_id[0] if plain_id else None,
        drafted_id=drafted_id[0] if drafted_id else None,
        top_ids=top_ids,
        gap=gap,
        bound=bound,
        is_tie=is_tie,
    )


def locate(row: Row, position: int) -> tuple[int, int, bool]:
    """Cycle (0: the prompt's pass), place in it, and whether that token was an accepted draft."""
    begin = 1
    if position < begin:
        return 0, 0, False
    for number, cycle in enumerate(row.cycles, 1):
        slot = position - begin
        if slot < len(cycle.committed_ids):
            return number, slot, slot < cycle.accepted_len
        begin += len(cycle.committed_ids)
    return len(row.cycles), position - begin, False
