"""How long outputs may be: max_tokens, the context of the target, the size of a block."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.errors import CapacityError
from blockdraft.types import SamplingParams
from tests.drafters.tiny import tiny_drafter
from tests.fakes.codec import make_llm
from tests.fakes.drafting import random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import greedy_oracle, ids_of, random_prompts, script_for, solo
from tests.fakes.scripted import Pattern, ScriptedDrafter, accept_all, accept_first, accept_none

PROMPT = random_prompts([11], seed=6)[0]


@cache
def oracle() -> tuple[int, ...]:
    return greedy_oracle(tiny_target(), PROMPT, 80)


@pytest.mark.parametrize("pattern", [accept_all, accept_none, accept_first(3)])
@pytest.mark.parametrize("max_tokens", [0, 1, 2, 7, 8, 9, 64])
def test_bc05_exactly_max_tokens(max_tokens: int, pattern: Pattern) -> None:
    drafter = ScriptedDrafter({tuple(PROMPT): oracle()}, pattern, 7, 160)
    llm = make_llm(tiny_target(end_ids=()), drafter)
    [output] = llm.generate([PROMPT], SamplingParams(max_tokens=max_tokens))
    assert (output.token_ids, output.finish_reason) == (oracle()[:max_tokens], "length")
    assert output.usage.completion_tokens == max_tokens
    assert output.usage.prompt_tokens == len(PROMPT)
    assert output.text == llm.loaded.codec.decode(output.token_ids)
    if max_tokens <= 2:  # the first token needs none, the second is the bonus of an empty block
        assert drafter.num_drafts == 0
    pieces = list(llm.stream(PROMPT, SamplingParams(max_tokens=max_tokens)))
    assert sum((piece.token_ids for piece in pieces), ()) == output.token_ids


def test_bc05_nothing_is_drafted_beyond_the_limit() -> None:
    """9 tokens: one from the prefill, then a block of 7 and its bonus: no second draft."""
    drafter = ScriptedDrafter({tuple(PROMPT): oracle()}, accept_all, 7, 160)
    [output] = make_llm(tiny_target(), drafter).generate([PROMPT], SamplingParams(max_tokens=9))
    assert (output.speculation.drafted, drafter.num_drafts) == (7, 1)
    [output] = make_llm(tiny_target(), drafter).generate([PROMPT], SamplingParams(max_tokens=6))
    assert (output.speculation.drafted, output.speculation.accepted) == (4, 4)


def drafters_for(target: Any, prompt: list[int]) -> list[Any]:
    script = {tuple(prompt): greedy_oracle(tiny_target(), prompt, 20)}
    return [
        None,
        NgramDrafter(7, min_n=1),
        random_drafter(target, "dflash", max_context_len=64),
        random_drafter(target, "dflash2", max_context_len=64, windows=8),
        ScriptedDrafter(script, accept_all, 7, 160),
        ScriptedDrafter(script, accept_none, 7, 160),
    ]


@pytest.mark.parametrize("prompt_len", [50, 57, 60, 62, 63])
def test_bc36_the_context_ends_the_output(prompt_len: int) -> None:
    target = tiny_target(max_context_len=64, end_ids=())
    prompt = random_prompts([prompt_len], seed=prompt_len)[0]
    expected = greedy_oracle(tiny_target(), prompt, 64 - prompt_len)
    for drafter in drafters_for(target, prompt):
        [output] = make_llm(target, drafter).generate([prompt], SamplingParams(max_tokens=100))
        assert (output.token_ids, output.finish_reason) == (expected, "length"), drafter


def test_bc36_rows_near_the_end_of_the_context_in_a_batch() -> None:
    """Blocks of other rows are wider than what is left of the context of these."""
    target = tiny_target(max_context_len=64, end_ids=())
    prompts = random_prompts([60, 3, 62, 40])
    params = SamplingParams(max_tokens=100)
    expected = ids_of(solo(target, prompts, params))
    for drafter in (NgramDrafter(15, min_n=1), random_drafter(target, max_context_len=64)):
        assert ids_of(make_llm(target, drafter).generate(prompts, params)) == expected


@pytest.mark.parametrize("prompt_len", [64, 65, 200])
def test_bc36_a_prompt_that_fills_the_context_is_refused(prompt_len: int) -> None:
    llm = make_llm(tiny_target(max_context_len=64))
    prompts = [[5], random_prompts([prompt_len])[0]]
    with pytest.raises(CapacityError, match=rf"prompt 1 has {prompt_len} tokens.*64.*shorten"):
        llm.generate(prompts)
    with pytest.raises(CapacityError, match=f"{prompt_len} tokens"):
        next(llm.stream(prompts[1]))


@pytest.mark.parametrize("asked", [1, 3, 7])
def test_bc49_drafts_as_many_as_asked_for(asked: int) -> None:
    drafter = tiny_drafter(num_draft_tokens=asked)
    [output] = make_llm(tiny_target(), drafter).generate([PROMPT], SamplingParams(max_tokens=20))
    assert output.token_ids == oracle()[:20]
    assert len(output.speculation.drafted_by_position) == asked


@pytest.mark.parametrize("asked", [8, 20])
def test_bc49_more_than_a_block_holds_is_lowered_with_one_notice(asked: int) -> None:
    with pytest.warns(UserWarning, match=f"num_draft_tokens is {asked}.*using 7") as caught:
        drafter = tiny_drafter(num_draft_tokens=asked)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm = make_llm(tiny_target(), drafter)
        [output] = llm.generate([PROMPT], SamplingParams(max_tokens=20))
    assert output.token_ids == oracle()[:20]
    assert len(output.speculation.drafted_by_position) == 7


def test_wide_blocks_next_to_a_row_at_its_limit() -> None:
    """A block of 101 rows is padded far beyond the limit of a row that wants few tokens more."""
    target = tiny_target(end_ids=())
    prompts = random_prompts([150, 6])
    params = [SamplingParams(max_tokens=10), SamplingParams(max_tokens=120)]
    expected = ids_of(solo(target, prompts, params))
    llm = make_llm(target, script_for(target, prompts, params, accept_none, 100))
    assert ids_of(llm.generate(prompts, params)) == expected
