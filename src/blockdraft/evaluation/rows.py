"""From the runs of one cell to a row of the result. Formulas: `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from blockdraft.evaluation.acceptance import acceptance
from blockdraft.evaluation.answers import PHASES, Answer, ChunkRun
from blockdraft.evaluation.benchmark import Cell
from blockdraft.evaluation.pairs import prompt_figures
from blockdraft.evaluation.repeats import distinct_ngrams, longest_repeat
from blockdraft.evaluation.server_metrics import add_server_counts

_PERCENTILES = (50, 95, 99)


def row_of(cell: Cell, runs: Sequence[ChunkRun]) -> dict[str, Any]:
    """Everything about a cell that needs no other cell."""
    answers = [answer for run in runs for answer in run.answers]
    good = [answer for answer in answers if answer.error is None]
    return {
        **vars(cell),
        "num_prompts": len({answer.prompt_id for answer in answers}),
        "num_answers": len(answers),
        "num_tokens": sum(answer.num_tokens for answer in answers),
        "num_errors": len(answers) - len(good),
        "left_out": sorted({prompt_id for run in runs for prompt_id in run.left_out}),
        "finish_reasons": _count(answer.finish_reason for answer in answers),
        **_acceptance(answers, runs),
        **_speed(answers, runs),
        **_clock(answers, runs),
        **_memory(runs),
        **_text(good),
        "prompts": prompt_figures(runs, is_alone=cell.concurrency == 1),
    }


def _acceptance(answers: Sequence[Answer], runs: Sequence[ChunkRun]) -> dict[str, Any]:
    """Of our own cycles; of a server, as much as its counters say."""
    found = acceptance(by_prompt(answers)).as_dict()
    counts = add_server_counts([run.server_counts for run in runs if run.server_counts])
    if counts is None:
        return found
    # A cycle commits what it accepts and one token more; servers count those that draft, if any.
    decoded = decoded_tokens(answers)
    cycles = max(decoded - counts.accepted, counts.cycles or 0)
    return found | {
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "cycles": cycles,
        "tau_pooled": decoded / cycles if cycles else None,
        "accepted_by_position": counts.accepted_by_position,
    }


def by_prompt(answers: Iterable[Answer]) -> list[list[Any]]:
    """Cycles of the answers of each prompt; a server's answers have none."""
    found: dict[str, list[Any]] = {}
    for answer in answers:
        found.setdefault(answer.prompt_id, []).append(answer.cycles or ())
    return list(found.values())


def _count(values: Iterable[str]) -> dict[str, int]:
    every = list(values)
    return {value: every.count(value) for value in sorted(set(every))}


def _speed(answers: Sequence[Answer], runs: Sequence[ChunkRun]) -> dict[str, Any]:
    wall = sum(run.wall_s for run in runs)
    decoded, decode_s = decoded_tokens(answers), sum(a.decode_s for a in answers)
    return {
        "tokens_per_s": _ratio(sum(a.num_tokens for a in answers), wall),
        "decode_tokens_per_s": _ratio(decoded, decode_s),
        "ttft_ms": percentiles([a.ttft_s for a in answers if a.ttft_s is not None]),
        "itl_ms": percentiles([gap for a in answers for gap in a.gaps_s]),
    }


def decoded_tokens(answers: Sequence[Answer]) -> int:
    """Tokens that decoding gave: the first of each answer belongs to its prompt's pass."""
    return sum(max(0, answer.num_tokens - 1) for answer in answers)


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p95 and p99 in ms; None of nothing."""
    if not seconds:
        return None
    values = np.percentile(np.asarray(seconds) * 1e3, _PERCENTILES)
    return {f"p{p}": float(value) for p, value in zip(_PERCENTILES, values, strict=True)}


def _clock(answers: Sequence[Answer], runs: Sequence[ChunkRun]) -> dict[str, Any]:
    wall = sum(run.wall_s for run in runs)
    timed = [run for run in runs if run.phase_s is not None]
    num_passes = sum(run.num_passes or 0 for run in timed)
    if not timed:
        return {"wall_s": wall, "time_s": None, "ms_per_cycle": None, "mean_batch": None}
    spent = {name: sum(run.phase_s[name] for run in timed if run.phase_s) for name in PHASES}
    num_cycles = sum(len(answer.cycles or ()) for answer in answers)
    per_cycle = None
    if num_passes:
        per_cycle = {n: spent[n] / num_passes * 1e3 for n in PHASES if n != "prefill"}
    return {
        "wall_s": wall,
        "time_s": spent,
        "ms_per_cycle": per_cycle,
        "mean_batch": _ratio(num_cycles, num_passes),
    }


def _memory(runs: Sequence[ChunkRun]) -> dict[str, Any]:
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    caches = [run.cache_bytes for run in runs if run.cache_bytes is not None]
    return {
        "peak_memory_bytes": max(peaks, default=None),
        "cache_bytes": max(caches, default=None),
    }


def _text(answers: Sequence[Answer]) -> dict[str, Any]:
    with_ids = [answer.token_ids for answer in answers if answer.token_ids]
    repeats = [longest_repeat(ids) for ids in with_ids]
    shares = [share for ids in with_ids if (share := distinct_ngrams(ids)) is not None]
    return {
        "longest_repeat": max(repeats, default=None),
        "mean_longest_repeat": _ratio(sum(repeats), len(repeats)),
        "distinct_4grams": _ratio(sum(shares), len(shares)),
    }


def _ratio(top: float, bottom: float) -> float | None:
    return top / bottom if bottom else None
