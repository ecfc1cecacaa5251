"""Recall and the oracle: worked out by hand, and on a drafter that really chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.evaluation.answers import ChunkRun
from blockdraft.evaluation.benchmark import Settings
from blockdraft.evaluation.candidates import (
    CandidateCounts,
    SeenDraft,
    add_counts,
    candidate_figures,
    count_candidates,
)
from blockdraft.evaluation.engines import LocalEngine
from blockdraft.evaluation.evaluate import evaluate
from blockdraft.types import SamplingParams
from tests.evaluation.runs import engines, out_in, prompts, target, task
from tests.fakes.codec import make_llm
from tests.fakes.drafting import random_drafter


def slot(best: int, right: int, place: int) -> list[int]:
    """16 candidates: `best` first, `right` at a place (nowhere if that is beyond them)."""
    ids = [best, *range(1000, 1015)]
    if place < 16:
        ids[place] = right
    return ids


TEXT = [9, 9, 1, 2, 3, 4, 5]

# Cycle 1 stands before 1 2 3 4 5: places 0, 5, nowhere. The path is right twice.
ONE = SeenDraft(TEXT, 2, torch.tensor([slot(1, 1, 0), slot(7, 2, 5), slot(7, 3, 99)]), (1, 2, 7))
# Cycle 2 stands before 4 5: places 3, 0, and a slot beyond the end. The path is wrong at once.
TWO = SeenDraft(TEXT, 5, torch.tensor([slot(7, 4, 3), slot(5, 5, 0), slot(7, 7, 0)]), (7, 5, 7))


def test_counts_by_hand() -> None:
    counts = count_candidates([ONE, TWO])
    assert counts == CandidateCounts(
        cycles=2,
        known=(2, 2, 1),
        hits={"1": (1, 1, 0), "4": (2, 1, 0), "8": (2, 2, 0), "16": (2, 2, 0)},
        # Best candidates: 1 + 1 and 0 + 1. Paths: 2 + 1 and 0 + 1. Oracle: 2 + 1, and all of 4 5.
        committed={"top1": 3, "selector": 4, "oracle": 5},
    )


def test_figures_by_hand() -> None:
    figures = candidate_figures(count_candidates([ONE, TWO]))
    assert figures["recall_by_position"]["4"] == [1.0, 0.5, 0.0]
    taus = [figures[f"{name}_tau"] for name in ("top1", "selector", "oracle")]
    assert taus == [1.5, 2.0, 2.5]
    assert figures["headroom_recovered"] == 0.5


def test_parts_add_up() -> None:
    parts = [count_candidates([ONE]), count_candidates([TWO]), count_candidates([])]
    assert add_counts(parts) == count_candidates([ONE, TWO])


def test_a_row_that_failed_counts_nothing() -> None:
    failed = SeenDraft(TEXT, len(TEXT), ONE.candidates, ONE.path)
    assert count_candidates([failed, ONE]) == count_candidates([ONE])
    assert candidate_figures(count_candidates([failed]))["oracle_tau"] is None
    assert candidate_figures(None).keys() == candidate_figures(count_candidates([ONE])).keys()


def test_no_headroom_has_no_share() -> None:
    sure = SeenDraft(TEXT, 2, torch.tensor([slot(1, 1, 0)]), (1,))
    assert candidate_figures(count_candidates([sure]))["headroom_recovered"] is None


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_behind_a_lookup_the_cycles_that_were_drafted_count(method: str) -> None:
    """As many as with one row at a time, where a row that is looked up needs no pass."""
    block, on = random_drafter(target(), method), target()
    engine = LocalEngine(make_llm(on, LookupFirst(NgramDrafter(7, min_n=2), block)))
    assert engine.why_no_candidates is None
    params = [SamplingParams(max_tokens=40)] * 5
    run = engine.run(prompts(), params, 5)
    counts = engine.watch(prompts(), params).candidates
    assert counts is not None
    cycles = [cycle for answer in run.answers for cycle in answer.cycles or ()]
    with_drafts = [cycle for cycle in cycles if cycle.drafted]
    assert 0 < counts.cycles < len(with_drafts)
    alone = [engine.watch([one], params[:1]).candidates for one in prompts()]
    assert add_counts([each for each in alone if each is not None]) == counts
    assert engine.llm.drafter is not None
    assert engine.llm.drafter.innermost is block  # the watch was put before a copy


@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_watching_changes_no_draft(method: str) -> None:
    """The selector's tau of the watched run is the tau of the timed one."""
    engine = LocalEngine(make_llm(target(), random_drafter(target(), method)))
    params = [SamplingParams(max_tokens=40)] * 5
    own = [prompt.turns[0] for prompt in prompts()]
    run = engine.run(prompts(), params, 5)
    counts = engine.watch(prompts(), params).candidates
    assert counts is not None
    cycles = [cycle for answer in run.answers for cycle in answer.cycles or ()]
    with_drafts = [cycle for cycle in cycles if cycle.drafted]
    assert len(own) == 5
    assert counts.cycles == len(with_drafts)
    assert counts.committed["selector"] == sum(cycle.committed for cycle in with_drafts)
    assert counts.committed["top1"] <= counts.committed["oracle"]
    assert counts.committed["selector"] <= counts.committed["oracle"]
    if method == "dflash":
        assert counts.committed["selector"] == counts.committed["top1"]


def test_rows_have_the_figures(tmp_path: Path) -> None:
    drafter = random_drafter(target(), "dflash2")
    result = evaluate(
        engines(dflash2=drafter),
        [task()],
        Settings(max_tokens=20, concurrency=(1, 2), temperatures=(0.0, 1.0)),
        out_in(tmp_path),
        must_be_equal=True,
        log=lambda _: None,
    )
    assert len(result["rows"]) == 8
    for row in result["rows"]:
        is_watched = row["method"] == "dflash2" and row["temperature"] == 0
        assert (row["oracle_tau"] is not None) == is_watched
        if is_watched:
            assert 0 < row["candidate_cycles"] <= row["cycles"]
            recall = row["recall_by_position"]
            assert list(recall) == ["1", "4", "8", "16"]
            assert all(a <= b for a, b in zip(recall["1"], recall["16"], strict=True))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            Settings(max_tokens=2),
            [
                "no candidates to look at: plain (it drafts nothing), ngram (its drafts are not "
                "chosen among candidates)"
            ],
        ),
        (
            Settings(max_tokens=2, temperatures=(1.0,)),
            ["no candidates are looked at: that is done in greedy runs, and no temperature is 0"],
        ),
        (Settings(max_tokens=2, candidates=False), []),
    ],
    ids=["methods", "sampled", "not asked"],
)
def test_what_has_no_candidates_is_said_once(
    tmp_path: Path, settings: Settings, said: list[str]
) -> None:
    lines: list[str] = []
    both = LookupFirst(NgramDrafter(7, min_n=2), random_drafter(target(), "dflash"))
    methods = engines(ngram=NgramDrafter(), both=both)
    evaluate(methods, [task(1)], settings, out_in(tmp_path), must_be_equal=True, log=lines.append)
    assert [line for line in lines if "candidates" in line] == said


def test_counts_come_back_from_json() -> None:
    run = ChunkRun(
        answers=(),
        wall_s=0.0,
        phase_s=None,
        num_passes=None,
        candidates=count_candidates([ONE, TWO]),
    )
    assert ChunkRun.from_json(json.loads(json.dumps(run.as_json()))) == run
