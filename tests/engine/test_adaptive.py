"""Drafts fitted to the load change how quickly a text is written, never what it says."""

from __future__ import annotations

from typing import Any

import pytest

from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.llm import LLM
from blockdraft.errors import ConfigError
from blockdraft.targets.base import Target
from blockdraft.types import SamplingParams
from blockdraft.verification.budget import DraftBudget
from tests.fakes.codec import make_llm
from tests.fakes.drafting import random_drafter
from tests.fakes.load import RandomBudget, TimedBudget, World
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, scripted
from tests.fakes.scripted import accept_all, accept_none

FEW = 6
DEAR = World(row_ms=5.0, draft_fixed_ms=50.0)
DRAFTERS: dict[str, Any] = {
    "ngram": lambda target: NgramDrafter(6, min_n=1),
    "dflash": lambda target: random_drafter(target, "dflash"),
    "dflash2": lambda target: random_drafter(target, "dflash2", windows=9),
    "dflash2+ngram": lambda target: LookupFirst(
        NgramDrafter(7, min_n=1), random_drafter(target, "dflash2")
    ),
}


def few_token_prompts(lens: tuple[int, ...] = (1, 9, 40, 2, 17, 8, 5, 3)) -> list[list[int]]:
    return [[token % FEW for token in p] for p in random_prompts(list(lens))]


def with_budget(target: Target, drafter: Any, budget: DraftBudget, batch_size: int = 8) -> LLM:
    llm = make_llm(target, drafter, max_batch_size=batch_size)
    llm.budget = budget
    return llm


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_does_not_depend_on_lengths(drafter: str, seed: int) -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts()
    params = [SamplingParams(max_tokens=20 + i) for i in range(len(prompts))]
    budget = RandomBudget(seed)
    llm = with_budget(target, DRAFTERS[drafter](target), budget, batch_size=3 + seed)
    outputs = llm.generate(prompts, params)
    assert ids_of(outputs) == ids_of(make_llm(target, None).generate(prompts, params))
    both = [(lens.looked_up, lens.drafted) for lens in budget.plans]
    assert any(any(looked_up) for looked_up, _ in both) == ("ngram" in drafter)
    assert any(any(drafted) for _, drafted in both) == ("dflash" in drafter)


def test_counters_are_of_what_was_verified() -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts()
    budget = RandomBudget(1)
    llm = with_budget(target, DRAFTERS["dflash2+ngram"](target), budget)
    outputs = llm.generate(prompts, SamplingParams(max_tokens=20))
    planned = sum(sum(lens.looked_up) + sum(lens.drafted) for lens in budget.plans)
    assert 0 < sum(o.speculation.drafted for o in outputs) == planned
    for output in outputs:
        assert output.speculation.accepted <= output.speculation.drafted
        assert output.speculation.committed == 19  # the first token is the prompt's pass


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_seed_gives_the_same_text_under_every_load(drafter: str) -> None:
    """Beside greedy requests whose drafts are cut, one with a seed of its own keeps its lengths."""
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts()
    seeded = SamplingParams(max_tokens=24, temperature=1.0, seed=42)
    greedy = SamplingParams(max_tokens=30)
    alone = make_llm(target, DRAFTERS[drafter](target)).generate([prompts[2]], seeded)
    budget = TimedBudget(DEAR)
    llm = with_budget(target, DRAFTERS[drafter](target), budget)
    for _ in range(3):  # from nothing known to drafts that do not pay
        outputs = llm.generate(prompts, [greedy, greedy, seeded, *[greedy] * 5])
        assert outputs[2].token_ids == alone[0].token_ids
        assert outputs[2].speculation == alone[0].speculation
    rest = [n for lens in budget.plans[-20:] for n in (*lens.looked_up, *lens.drafted)]
    assert 0 in rest


def test_sampled_requests_without_a_seed_are_cut_too() -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts()
    budget = TimedBudget(DEAR)
    llm = with_budget(target, DRAFTERS["dflash"](target), budget)
    for _ in range(3):
        llm.generate(prompts, SamplingParams(max_tokens=30, temperature=1.0))
    late = budget.plans[-10:]
    assert sum(any(lens.drafted) for lens in late) <= 2


def test_what_was_learnt_stays_with_the_engine() -> None:
    target, prompts = tiny_target(end_ids=()), random_prompts([4, 5, 6, 7])
    script = scripted(target, prompts, accept_none, length=60)
    budget = TimedBudget(World(row_ms=1.0, draft_row_ms=2.0))
    llm = with_budget(target, script, budget, batch_size=4)
    params = SamplingParams(max_tokens=40)
    llm.generate(prompts, params)
    first, budget.plans = budget.plans, []
    llm.generate(prompts, params)
    assert any(first[0].drafted)
    assert sum(any(lens.drafted) for lens in budget.plans) <= 4
    assert not any(budget.plans[0].drafted)


def test_good_drafts_are_taken_whole_and_one_request_always_is() -> None:
    target, prompts = tiny_target(end_ids=()), random_prompts([4, 5, 6, 7])
    good = scripted(target, prompts, accept_all, length=80)
    budget = TimedBudget(World(row_ms=0.01))
    llm = with_budget(target, good, budget, batch_size=4)
    llm.generate(prompts, SamplingParams(max_tokens=60))
    assert max(budget.plans[-3].drafted) == good.num_draft_tokens
    bad = scripted(target, prompts, accept_none, length=80)
    llm = with_budget(target, bad, TimedBudget(DEAR))
    [output] = llm.generate([prompts[0]], SamplingParams(max_tokens=20))
    assert output.speculation.drafted_by_position[-1] > 0


def test_mixed_batches_with_penalties_are_their_rows() -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts((5, 6, 7))
    params = [
        SamplingParams(max_tokens=15, repetition_penalty=1.3),
        SamplingParams(max_tokens=16, logprobs=2),
        SamplingParams(max_tokens=14, temperature=0.8, top_p=0.9, seed=3),
    ]
    drafter = DRAFTERS["dflash2+ngram"](target)
    outputs = with_budget(target, drafter, TimedBudget(DEAR)).generate(prompts, params)
    expected = [
        make_llm(target, drafter).generate([prompt], one)[0]
        for prompt, one in zip(prompts, params, strict=True)
    ]
    assert ids_of(outputs) == ids_of(expected)


def test_the_description_says_whether_drafts_are_fitted() -> None:
    target = tiny_target()
    drafter = random_drafter(target)
    llm = make_llm(target, drafter)
    assert llm.describe()["adaptive"] is False
    assert LLM.from_parts(llm.loaded, drafter, adaptive=True).describe()["adaptive"] is True
    assert LLM.from_parts(llm.loaded, None, adaptive=True).describe()["adaptive"] is False


def test_it_is_yes_or_no() -> None:
    with pytest.raises(ConfigError, match="adaptive is 'maybe'; it must be True or False"):
        LLM("no-such-model", adaptive="maybe")  # type: ignore[arg-type]
