"""A method beside another one on the same prompts: ratios whose intervals know what is paired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blockdraft.evaluation.answers import Answer, ChunkRun
from blockdraft.evaluation.bootstrap import ratio_of_ratios_interval

Row = Mapping[str, Any]

#: Digits that are kept of a prompt's figures.
_DIGITS = 5


def prompt_figures(runs: Sequence[ChunkRun], *, is_alone: bool) -> list[dict[str, Any]]:
    """A prompt's id, tau, tokens and seconds, over all of its turns.

    Args:
        is_alone: prompts ran one at a time, each with the whole clock of its chunk.
    """
    found = []
    for run in runs:
        for prompt_id, answers in _by_prompt(run.answers).items():
            taus = [tau for answer in answers if (tau := _tau(answer)) is not None]
            seconds = run.wall_s if is_alone else sum(map(_seconds, answers))
            found.append(
                {
                    "id": prompt_id,
                    "tau": round(sum(taus) / len(taus), _DIGITS) if taus else None,
                    "tokens": sum(answer.num_tokens for answer in answers),
                    "seconds": round(seconds, _DIGITS),
                }
            )
    return found


def against_others(rows: Iterable[Row], plain: str) -> list[dict[str, Any]]:
    """The rows, each with its gains over the drafting methods before it, by their names."""
    done: list[dict[str, Any]] = []
    for row in rows:
        others = [other for other in done if _is_same_cell(row, other)]
        gains = {} if row["method"] == plain else {o["method"]: paired_gain(row, o) for o in others}
        gains.pop(plain, None)
        done.append({**row, "against": {name: gain for name, gain in gains.items() if gain}})
    return done


def paired_gain(row: Row, other: Row) -> dict[str, Any] | None:
    """Ratios of tau and speed of two rows, with intervals of the prompts that both answered.

    Returns: None where a row has no figures by prompt (those of earlier versions have none).
    """
    theirs = {prompt["id"]: prompt for prompt in other.get("prompts") or ()}
    pairs = [(p, theirs[p["id"]]) for p in row.get("prompts") or () if p["id"] in theirs]
    if not pairs:
        return None
    drafted = [(p, o) for p, o in pairs if p["tau"] is not None and o["tau"] is not None]
    ones = [1.0] * len(drafted)
    taus = _ratio(([p["tau"] for p, _ in drafted], ones), ([o["tau"] for _, o in drafted], ones))
    is_timed = row["concurrency"] == other["concurrency"] == 1
    is_timed = is_timed and not (row.get("speedup_refused") or other.get("speedup_refused"))
    speeds = _ratio(*map(_rates, zip(*pairs, strict=True))) if is_timed else (None, None)
    return {
        "num_prompts": len(pairs),
        "tau_ratio": taus[0],
        "tau_ratio_ci95": taus[1],
        "speed_ratio": speeds[0],
        "speed_ratio_ci95": speeds[1],
    }


_Side = tuple[Sequence[float], Sequence[float]]


def _rates(prompts: Sequence[Row]) -> _Side:
    return [p["tokens"] for p in prompts], [p["seconds"] for p in prompts]


def _ratio(top: _Side, bottom: _Side) -> tuple[float | None, tuple[float, float] | None]:
    (a, b), (c, d) = ([sum(values) for values in side] for side in (top, bottom))
    if not (b and c and d):
        return None, None
    return (a / b) / (c / d), ratio_of_ratios_interval(top, bottom)


def _is_same_cell(row: Row, other: Row) -> bool:
    return all(row[key] == other[key] for key in ("task", "concurrency", "temperature"))


def _by_prompt(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.prompt_id, []).append(answer)
    return found


def _tau(answer: Answer) -> float | None:
    cycles = answer.cycles
    return sum(cycle.committed for cycle in cycles) / len(cycles) if cycles else None


def _seconds(answer: Answer) -> float:
    return (answer.ttft_s or 0.0) + answer.decode_s
