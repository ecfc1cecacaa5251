"""Acceptance of ways to choose, over the same answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.findings.blocks import AnswerBlocks, commits, cycle_starts
from benchmarks.findings.choosers import CHOOSERS
from benchmarks.findings.repeats import lookup_matches, repeated_len
from blockdraft.evaluation.bootstrap import (
    Interval,
    ratio_interval,
    ratio_of_ratios_interval,
)

#: Candidates that are compared; 1 is the head alone.
COUNTS = (1, 2, 4, 8, 16, 32)

#: Tokens of the right continuation that must stand in the text for it to count as repeated.
REPEATED_LENS = (2, 3, 4)

#: What is compared at the same places.
_AT_PLACES = ("top1", "walk", "oracle", "ngram")


def count_figures(answers: Sequence[AnswerBlocks], shipped: int) -> dict[str, Any]:
    """Acceptance length of the walk and of an oracle, by the number of candidates.

    Each is led along its own cycles; `over_shipped` compares with the walk among `shipped`.
    """
    counts = sorted({*COUNTS, shipped})
    walks = {n: [_num_cycles(each, "walk", n) for each in answers] for n in counts}
    oracles = {n: [_num_oracle_cycles(each, n) for each in answers] for n in counts}
    return {
        str(n): {
            "walk": _figures(answers, walks[n], walks[shipped]),
            "oracle": _figures(answers, oracles[n], walks[shipped]),
        }
        for n in counts
    }


def chooser_figures(answers: Sequence[AnswerBlocks], num_candidates: int) -> dict[str, Any]:
    """Acceptance length of every way to choose among the same candidates, each on its own cycles.

    `over_shipped` compares with the walk.
    """
    cycles = {
        name: [_num_cycles(each, name, num_candidates) for each in answers] for name in CHOOSERS
    }
    cycles["oracle"] = [_num_oracle_cycles(each, num_candidates) for each in answers]
    return {name: _figures(answers, own, cycles["walk"]) for name, own in cycles.items()}


def repeat_figures(answers: Sequence[AnswerBlocks], num_candidates: int) -> dict[str, Any]:
    """Tokens committed at the places of the walk's cycles, by whether what is right is a repeat.

    A cycle is a repeat of n if the first n right tokens stand in the text before. Cycles with fewer
    than n tokens before the end of their answer are left out.
    """
    seen = [_at_places(each, num_candidates) for each in answers]
    found: dict[str, Any] = {}
    for n in REPEATED_LENS:
        known = [[row for row in rows if row["left"] >= n] for rows in seen]
        classes = {
            "repeated": [[r for r in rows if r["repeated"] >= n] for rows in known],
            "new": [[r for r in rows if r["repeated"] < n] for rows in known],
        }
        found[str(n)] = {name: _class_figures(rows) for name, rows in classes.items()}
    return found


def _num_cycles(answer: AnswerBlocks, name: str, num_candidates: int) -> int:
    return len(cycle_starts(commits(answer.matches(_chosen(answer, name, num_candidates)))))


def _num_oracle_cycles(answer: AnswerBlocks, num_candidates: int) -> int:
    return len(cycle_starts(commits(answer.oracle(num_candidates))))


def _chosen(answer: AnswerBlocks, name: str, num_candidates: int) -> Any:
    # The best n are the first n of more: so are the edges between them.
    return CHOOSERS[name](answer.scores[:, :, :num_candidates, :num_candidates])


def _figures(
    answers: Sequence[AnswerBlocks], cycles: Sequence[int], shipped: Sequence[int]
) -> dict[str, Any]:
    committed = [each.num_tokens for each in answers]
    tasks = list(dict.fromkeys(each.asked.task for each in answers))
    by_task = {}
    for task in tasks:
        own = [i for i, each in enumerate(answers) if each.asked.task == task]
        by_task[task] = sum(committed[i] for i in own) / sum(cycles[i] for i in own)
    return {
        "committed": sum(committed),
        "cycles": sum(cycles),
        "tau_pooled": sum(committed) / sum(cycles),
        "tau_pooled_ci95": ratio_interval(committed, cycles),
        "over_shipped": sum(shipped) / sum(cycles),
        "over_shipped_ci95": ratio_interval(shipped, cycles),
        "tau_pooled_by_task": by_task,
    }


def _at_places(answer: AnswerBlocks, num_candidates: int) -> list[dict[str, int]]:
    """What each cycle of the walk commits, and what others would have committed in its place."""
    k = answer.right.shape[1]
    each = {
        name: commits(answer.matches(_chosen(answer, name, num_candidates)))
        for name in ("top1", "walk")
    }
    each["oracle"] = commits(answer.oracle(num_candidates))
    each["ngram"] = commits(torch.tensor(lookup_matches(answer.token_ids, answer.first, k)))
    return [
        {
            "left": answer.num_tokens - at,
            "repeated": repeated_len(answer.token_ids, answer.first + at, max(REPEATED_LENS)),
            **{name: int(values[at]) for name, values in each.items()},
        }
        for at in cycle_starts(each["walk"])
    ]


def _class_figures(rows: Sequence[Sequence[Mapping[str, int]]]) -> dict[str, Any]:
    """Of the cycles of one class, by answer."""
    sums = {name: [sum(r[name] for r in own) for own in rows] for name in _AT_PLACES}
    cycles = [len(own) for own in rows]
    num, total = sum(cycles), {name: sum(values) for name, values in sums.items()}
    headroom = total["oracle"] - total["top1"]
    gain: Interval | None = ratio_of_ratios_interval((sums["walk"], cycles), (sums["top1"], cycles))
    return {
        "cycles": num,
        **{f"{name}_tau": total[name] / num if num else None for name in _AT_PLACES},
        "walk_over_top1": total["walk"] / total["top1"] if num else None,
        "walk_over_top1_ci95": gain,
        "headroom_recovered": (total["walk"] - total["top1"]) / headroom if headroom else None,
    }
