"""A method's row beside plain decoding's: equal outputs first, speed-up second."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from blockdraft.evaluation.acceptance import predicted_speedup
from blockdraft.evaluation.answers import Answer, ChunkRun
from blockdraft.evaluation.bootstrap import Interval, ratio_of_ratios_interval
from blockdraft.types import GREEDY_TEMPERATURE

#: Keys that `against_plain` gives, all None where there is nothing to compare with.
NOTHING: dict[str, Any] = dict.fromkeys(
    (
        "divergence_rate",
        "num_diverged",
        "speedup",
        "speedup_ci95",
        "speedup_median",
        "decode_speedup",
        "predicted_speedup",
        "speedup_refused",
    )
)


def against_plain(
    row: Mapping[str, Any],
    runs: Sequence[ChunkRun],
    plain_row: Mapping[str, Any],
    plain_runs: Sequence[ChunkRun],
    *,
    must_be_equal: bool,
) -> dict[str, Any]:
    """Divergence of greedy outputs and speed-ups.

    Args:
        must_be_equal: greedy outputs have no excuse to differ (`lossless.rounding.must_be_equal`):
            where they do, no speed-up is given.
    """
    found = dict(NOTHING)
    answers, plain = _answers(runs), _answers(plain_runs)
    if row["temperature"] < GREEDY_TEMPERATURE:
        common = [key for key in plain if key in answers]
        diverged = [key for key in common if _said(plain[key]) != _said(answers[key])]
        if common:
            found["num_diverged"] = len(diverged)
            found["divergence_rate"] = len(diverged) / len(common)
        if diverged and must_be_equal:
            prompt_id, turn = diverged[0]
            found["speedup_refused"] = (
                f"{len(diverged)} of {len(common)} greedy answers differ from plain decoding's "
                f"(first: {prompt_id}, turn {turn + 1})"
            )
            return found
    found["speedup"] = _ratio(row["tokens_per_s"], plain_row["tokens_per_s"])
    found["speedup_ci95"] = _interval(runs, plain_runs)
    found["speedup_median"] = _median(runs, plain_runs)
    found["decode_speedup"] = _ratio(row["decode_tokens_per_s"], plain_row["decode_tokens_per_s"])
    found["predicted_speedup"] = _predicted(row, plain_row)
    return found


def _answers(runs: Sequence[ChunkRun]) -> dict[tuple[str, int], Answer]:
    return {(answer.prompt_id, answer.turn): answer for run in runs for answer in run.answers}


def _said(answer: Answer) -> object:
    """Tokens; the text where a server gives no tokens."""
    return answer.token_ids or answer.text


def _interval(runs: Sequence[ChunkRun], plain_runs: Sequence[ChunkRun]) -> Interval | None:
    """By chunk, since the prompts of a chunk share the clock; with one at a time, by prompt."""
    if len(runs) != len(plain_runs):
        return None
    sides = [
        ([_tokens(run) for run in side], [run.wall_s for run in side])
        for side in (runs, plain_runs)
    ]
    return ratio_of_ratios_interval(*sides)


def _median(runs: Sequence[ChunkRun], plain_runs: Sequence[ChunkRun]) -> float | None:
    """Median over chunks, which run one after the other: a stall of the machine leaves it alone."""
    ratios = [
        ratio
        for run, plain in zip(runs, plain_runs, strict=False)
        if (ratio := _ratio(_rate(run), _rate(plain)))
    ]
    return statistics.median(ratios) if ratios else None


def _tokens(run: ChunkRun) -> float:
    return float(sum(answer.num_tokens for answer in run.answers))


def _rate(run: ChunkRun) -> float | None:
    return _ratio(_tokens(run), run.wall_s)


def _predicted(row: Mapping[str, Any], plain_row: Mapping[str, Any]) -> float | None:
    costs, plain = row["ms_per_cycle"], plain_row["ms_per_cycle"]
    if not costs or not plain or row["tau_pooled"] is None:
        return None
    return predicted_speedup(
        tau=row["tau_pooled"],
        plain_ms=sum(plain.values()),
        draft_ms=costs["draft"] + costs["select"],
        verify_ms=costs["verify"],
        other_ms=costs["other"],
    )


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top and bottom else None
