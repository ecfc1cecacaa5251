"""Where end tokens end the output. The oracle is run first; then one of its tokens is declared."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from blockdraft.decoding.row import Row
from blockdraft.engine.runner import Runner, RunnerLimits
from blockdraft.types import Request, SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import (
    greedy_oracle,
    ids_of,
    random_prompts,
    script_for,
    scripted,
    solo,
    with_end_ids,
)
from tests.fakes.scripted import (
    Pattern,
    ScriptedDrafter,
    TableTarget,
    accept_all,
    accept_first,
    accept_none,
)

#: 13 tokens, none of which is said twice in what follows but a few: see `oracle`.
PROMPT = random_prompts([13], seed=5)[0]
PARAMS = SamplingParams(max_tokens=24)


@cache
def oracle() -> tuple[int, ...]:
    return greedy_oracle(tiny_target(), PROMPT, 40)


def drafter(pattern: Pattern) -> ScriptedDrafter:
    return ScriptedDrafter({tuple(PROMPT): oracle()}, pattern, 7, 160)


@pytest.mark.parametrize("pattern", [accept_all, accept_first(3), accept_none])
@pytest.mark.parametrize("k", range(17))
def test_bc01_nothing_follows_the_end_token(k: int, pattern: Pattern) -> None:
    end_id = oracle()[k]
    expected = oracle()[: oracle().index(end_id) + 1]
    llm = make_llm(with_end_ids(tiny_target(), end_id), drafter(pattern))
    [output] = llm.generate([PROMPT], PARAMS)
    assert (output.token_ids, output.finish_reason) == (expected, "stop")
    assert output.text == llm.loaded.codec.decode(expected[:-1])
    assert output.usage.completion_tokens == len(expected)
    pieces = list(llm.stream(PROMPT, PARAMS))
    assert sum((piece.token_ids for piece in pieces), ()) == expected
    assert "".join(piece.text for piece in pieces) == output.text
    assert pieces[-1].output is not None
    assert pieces[-1].output.token_ids == expected


@pytest.mark.parametrize("k", [0, 4, 8])
def test_bc01_caches_are_empty_afterwards_and_never_run_ahead(k: int) -> None:
    """The runner checks after every cycle that the cache holds the committed tokens exactly."""
    target = with_end_ids(tiny_target(), oracle()[k])
    row = Row(
        request=Request(prompt_ids=tuple(PROMPT), params=PARAMS),
        limit_len=40,
        target_end_ids=frozenset(target.info.end_ids),
    )
    runner = Runner(target, drafter(accept_all), [row], RunnerLimits(max_batch_size=1))
    for _ in runner.run():
        held = runner.state.cache.lens[0]
        assert held == (0 if row.is_finished else len(row.token_ids) - 1)
    assert row.output_ids[-1] == oracle()[k]


def test_bc02_the_first_token_of_all_ends_without_a_draft() -> None:
    scripted_drafter = drafter(accept_all)
    llm = make_llm(with_end_ids(tiny_target(), oracle()[0]), scripted_drafter)
    [output] = llm.generate([PROMPT], PARAMS)
    assert output.token_ids == oracle()[:1]
    assert (output.text, output.finish_reason) == ("", "stop")
    assert scripted_drafter.num_drafts == 0
    assert output.speculation.cycles == output.speculation.committed == 0


def test_bc02_the_bonus_token_ends() -> None:
    """o[0] comes from the prefill, o[1..7] are the block, o[8] is the bonus."""
    end_id = oracle()[8]
    assert oracle().index(end_id) == 8
    llm = make_llm(with_end_ids(tiny_target(), end_id), drafter(accept_all))
    [output] = llm.generate([PROMPT], PARAMS)
    assert output.token_ids == oracle()[:9]
    assert (output.speculation.cycles, output.speculation.accepted) == (1, 7)


@pytest.mark.parametrize("k", [0, 8])
def test_bc02_one_row_of_a_batch_ends_and_the_others_do_not_notice(k: int) -> None:
    prompts = [random_prompts([6], seed=8)[0], PROMPT, random_prompts([21], seed=9)[0]]
    target = tiny_target()
    script = scripted(target, prompts, accept_all)
    with_end_ids(target, oracle()[k])
    expected = solo(target, prompts, PARAMS)
    outputs = make_llm(target, script).generate(prompts, PARAMS)
    assert outputs[1].token_ids == oracle()[: k + 1]
    assert ids_of(outputs) == ids_of(expected)


@pytest.mark.parametrize("ends", [(4,), (9, 4), (4, 9)])
def test_bc03_the_first_of_several_end_ids_ends(ends: tuple[int, ...]) -> None:
    """o[4] stands at the fourth place of the first block."""
    llm = make_llm(with_end_ids(tiny_target(), *(oracle()[k] for k in ends)), drafter(accept_all))
    assert llm.generate([PROMPT], PARAMS)[0].token_ids == oracle()[:5]


def test_bc03_stop_ids_of_the_request_are_added() -> None:
    llm = make_llm(with_end_ids(tiny_target(), oracle()[6]), drafter(accept_all))
    both = SamplingParams(max_tokens=24, stop_token_ids=(oracle()[9],))
    own = SamplingParams(max_tokens=24, stop_token_ids=(oracle()[9],), ignore_eos=True)
    none = SamplingParams(max_tokens=24, ignore_eos=True)
    outputs = [llm.generate([PROMPT], params)[0] for params in (both, own, none)]
    assert ids_of(outputs) == [oracle()[:7], oracle()[:10], oracle()[:24]]
    assert [output.finish_reason for output in outputs] == ["stop", "stop", "length"]


def test_bc04_a_rejected_end_token_ends_nothing() -> None:
    """SD(first 1) drafts o[1] and then o[2] + 1, which is the end id."""
    wrong = oracle()[2] + 1
    assert wrong not in oracle()[:24]
    script = drafter(accept_first(1))
    llm = make_llm(with_end_ids(tiny_target(), wrong), script)
    [output] = llm.generate([PROMPT], PARAMS)
    assert (output.token_ids, output.finish_reason) == (oracle()[:24], "length")
    assert script.num_drafts > 2


@pytest.mark.parametrize("pattern", [accept_all, accept_first(2), accept_none])
def test_bc09_the_end_is_impossible_before_min_tokens(pattern: Pattern) -> None:
    """The oracle would end at its third token; with min_tokens it says something else there."""
    target = with_end_ids(tiny_target(), oracle()[2])
    params = SamplingParams(max_tokens=24, min_tokens=6)
    [expected] = solo(target, [PROMPT], params)
    assert expected.token_ids[:2] == oracle()[:2]
    assert oracle()[2] not in expected.token_ids[:6]
    script = ScriptedDrafter({tuple(PROMPT): expected.token_ids}, pattern, 7, 160)
    assert ids_of(make_llm(target, script).generate([PROMPT], params)) == [expected.token_ids]


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 7, 15])
@pytest.mark.parametrize("min_tokens", [0, 1, 6, 20])
def test_bc09_the_end_is_allowed_from_then_on(min_tokens: int, num_draft_tokens: int) -> None:
    """A target that wants to end at once ends right after min_tokens tokens, not cycles."""
    logits = torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(0))
    logits[..., 1] = 9.0
    target = TableTarget(logits, end_ids=(1,))
    params = SamplingParams(max_tokens=30, min_tokens=min_tokens)
    script = script_for(target, [[3]], params, accept_all, num_draft_tokens)
    [output] = make_llm(target, script).generate([[3]], params)
    assert len(output.token_ids) == min_tokens + 1
    assert output.token_ids.index(1) == min_tokens
    assert output.finish_reason == "stop"
