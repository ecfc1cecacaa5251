"""Measured runs whose drafts are fitted to the load: the same texts, the same counts of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockdraft.evaluation.benchmark import Settings
from blockdraft.evaluation.engines import Engine, local_engines
from blockdraft.evaluation.evaluate import evaluate
from blockdraft.types import SamplingParams
from tests.evaluation.runs import engine, llm_of, out_in, prompts, task
from tests.fakes.load import TimedBudget, World


def found(adaptive: bool) -> dict[str, Engine]:
    return local_engines(llm_of(engine()), ["plain", "ngram"], adaptive=adaptive)


def test_each_method_learns_its_own_load() -> None:
    budgets = [llm_of(one).budget for one in found(adaptive=True).values()]
    assert None not in budgets
    assert len(set(map(id, budgets))) == 2
    assert [llm_of(one).budget for one in found(adaptive=False).values()] == [None, None]


def test_a_run_says_whether_it_was_fitted_and_answers_alike(tmp_path: Path) -> None:
    settings = Settings(max_tokens=31, concurrency=(1, 3), adaptive=True)
    result = evaluate(
        found(adaptive=True),
        [task()],
        settings,
        out_in(tmp_path),
        must_be_equal=True,
        log=lambda _: None,
    )
    assert result["settings"]["adaptive"] is True
    assert [row["num_tokens"] for row in result["rows"]] == [155] * 4
    assert all(row["divergence_rate"] == 0.0 for row in result["rows"])


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_load_reaches_prompts_that_run_beside_others(concurrency: int) -> None:
    """Seeded by the run, not by their own wish: their drafts are cut like those of a server."""
    one = found(adaptive=True)["ngram"]
    budget = TimedBudget(World(row_ms=50.0))
    llm_of(one).budget = budget
    params = [SamplingParams(max_tokens=40, temperature=1.0, seed=i) for i in range(5)]
    for _ in range(2):
        one.run(prompts(), params, concurrency)
    late = [lens for lens in budget.plans[-20:] if len(lens.looked_up) > 1]
    assert (concurrency == 1) == (not late)
    assert not any(sum(lens.looked_up) > 2 for lens in late)
