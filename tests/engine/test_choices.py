"""Temperature, filters and penalties through the whole engine, with drafts of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.errors import ConfigError
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.drafting import PointDrafter, SparseDrafter, VariedDrafter, random_drafter
from tests.fakes.laws import warped
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, script_for, solo
from tests.fakes.scripted import TableTarget, accept_all, accept_first, accept_none

FEW = 5
#: What two orders of addition may move a logit of these random models by, which are large.
ROUNDING = 5e-5


def table(scale: float = 1.0) -> TableTarget:
    return TableTarget(scale * torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(1)))


def sparse() -> SparseDrafter:
    gen = torch.Generator().manual_seed(2)
    ids = torch.stack([torch.randperm(8, generator=gen)[:6] for _ in range(8)])
    return SparseDrafter(ids, torch.softmax(torch.randn(8, 6, generator=gen), -1), 4)


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-4])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_bc15_tiny_temperatures_are_greedy_in_every_branch(
    temperature: float, scale: float
) -> None:
    """Plain, point mass, sampled q: no tie is near, so these temperatures leave one token."""
    greedy, prompts = SamplingParams(max_tokens=20), [[2], [5, 1], [7, 7, 3]]
    expected = ids_of(solo(table(scale), prompts, greedy))
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=4)
    point = PointDrafter(table().logits.mean(0).argmax(-1), 4)
    for drafter in (None, point, sparse()):
        assert ids_of(make_llm(table(scale), drafter).generate(prompts, params)) == expected


@pytest.mark.parametrize("temperature", [1e-12, 1e-6, 1e-4])
@pytest.mark.parametrize("method", ["dflash", "dflash2"])
def test_bc15_tiny_temperatures_in_the_walk(method: str, temperature: float) -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), [[1, 2, 3], [4]]
    greedy = make_llm(target, random_drafter(target, method)).generate(
        prompts, SamplingParams(max_tokens=20)
    )
    cold = make_llm(target, random_drafter(target, method)).generate(
        prompts, SamplingParams(max_tokens=20, temperature=temperature)
    )
    assert ids_of(cold) == ids_of(greedy)
    assert [o.speculation for o in cold] == [o.speculation for o in greedy]


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_bc15_impossible_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature"):
        SamplingParams(temperature=temperature)


FILTERS = {
    "min_p": SamplingParams(max_tokens=12, temperature=1.0, min_p=0.3),
    "top_k": SamplingParams(max_tokens=12, temperature=1.0, top_k=2),
    "top_p": SamplingParams(max_tokens=12, temperature=1.0, top_p=0.5),
}


@pytest.mark.parametrize("name", FILTERS)
def test_bc17_what_a_filter_cuts_is_never_said(name: str) -> None:
    """The drafter proposes the least likely token every time, always cut, for 40 seeds."""
    target = table()
    worst = PointDrafter(target.logits.mean(0).argmin(-1), 4)
    unlikely = {(x, y): warped(target.logits[x, y].numpy(), FILTERS[name]) == 0.0
                for x in range(8) for y in range(8)}  # fmt: skip
    for drafter in (worst, sparse()):
        params = [_with_seed(FILTERS[name], seed) for seed in range(40)]
        outputs = make_llm(target, drafter, max_batch_size=40).generate([[2, 5]] * 40, params)
        for output in outputs:
            text = [2, 5, *output.token_ids]
            triples = zip(text, text[1:], text[2:], strict=False)
            assert not any(unlikely[x, y][z] for x, y, z in triples)
        assert sum(o.speculation.drafted > o.speculation.accepted for o in outputs) == 40


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    changes = {"max_tokens": params.max_tokens, "temperature": params.temperature, "seed": seed}
    filters = {"min_p": params.min_p, "top_k": params.top_k, "top_p": params.top_p}
    return SamplingParams(**changes, **filters)  # type: ignore[arg-type]


PENALTIES = {
    "repetition": {"repetition_penalty": 1.3},
    "praise": {"repetition_penalty": 0.8},
    "frequency": {"frequency_penalty": 2.0},
    "negative frequency": {"frequency_penalty": -2.0},
    "presence": {"presence_penalty": 1.5},
    "all": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.7,
        "presence_penalty": 1.5,
        "logit_bias": {1: 2.0, 3: -1.0},
        "min_tokens": 10,
        "stop_token_ids": (2,),
    },
}


@pytest.mark.parametrize("name", PENALTIES)
def test_bc18_penalties_with_every_pattern(name: str) -> None:
    """Of few tokens most come twice in one block: each row must count the drafts before it."""
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), [[1, 2, 3, 1], [4, 0], [2]]
    params = SamplingParams(max_tokens=18, **PENALTIES[name])
    expected = solo(target, prompts, params)
    patterns = (accept_all, accept_none, accept_first(3))
    drafters: list[Any] = [script_for(target, prompts, params, p) for p in patterns]
    drafters += [VariedDrafter(drafters[0], ragged=True), NgramDrafter(7, min_n=1)]
    drafters += [random_drafter(target, "dflash"), random_drafter(target, "dflash2")]
    for drafter in drafters:
        assert ids_of(make_llm(target, drafter).generate(prompts, params)) == ids_of(expected)
    blocks = [o.token_ids[1:8] for o in expected]
    assert any(len(set(block)) < len(block) for block in blocks)


def test_bc18_penalties_do_something() -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), [[1, 2, 3, 1], [4, 0], [2]]
    plain = ids_of(solo(target, prompts, SamplingParams(max_tokens=18)))
    for penalty in PENALTIES.values():
        assert ids_of(solo(target, prompts, SamplingParams(max_tokens=18, **penalty))) != plain


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_bc18_impossible_penalties_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="repetition_penalty"):
        SamplingParams(repetition_penalty=value)


@pytest.mark.parametrize("wrong", [{"logit_bias": {160: 1.0}}, {"stop_token_ids": (-1,)}])
def test_token_ids_outside_the_vocabulary_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"0 to 159"):
        make_llm(tiny_target()).generate([[1]], SamplingParams(**wrong))


PATTERNS = {"all": accept_all, "none": accept_none, "first 2": accept_first(2)}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bc21_logprobs_are_those_of_the_oracle(pattern: str) -> None:
    """One row does not ask; one is cut by its end token inside a block; one by a stop string."""
    target, prompts = tiny_target(end_ids=()), random_prompts([5, 1, 23, 9])
    free = ids_of(solo(target, prompts, SamplingParams(max_tokens=20)))
    params = [
        SamplingParams(max_tokens=20, logprobs=5),
        SamplingParams(max_tokens=20),
        SamplingParams(max_tokens=20, logprobs=5, stop_token_ids=(free[2][4],)),
        SamplingParams(max_tokens=20, logprobs=0, stop=f" {free[3][6]},"),
    ]
    expected = solo(target, prompts, params)
    script = script_for(target, prompts, SamplingParams(max_tokens=20), PATTERNS[pattern])
    outputs = make_llm(target, script).generate(prompts, params)
    assert ids_of(outputs) == ids_of(expected) == [free[0], free[1], free[2][:5], free[3][:7]]
    assert outputs[1].logprobs is None
    for output, oracle in zip(outputs, expected, strict=True):
        if oracle.logprobs is None or output.logprobs is None:
            continue
        assert tuple(one.token_id for one in output.logprobs) == output.token_ids
        for one, other in zip(output.logprobs, oracle.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=ROUNDING)
            assert one.rank == other.rank == 1
            assert [i for i, _ in one.top] == [i for i, _ in other.top]
            assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=ROUNDING)


def test_bc21_logprobs_of_sampled_and_penalised_tokens_are_of_the_raw_logits() -> None:
    target = table()
    params = SamplingParams(max_tokens=15, temperature=2.0, top_k=4, logprobs=8, seed=1,
                            repetition_penalty=1.5)  # fmt: skip
    [output] = make_llm(target, sparse()).generate([[2, 5]], params)
    assert output.logprobs is not None
    text = [2, 5, *output.token_ids]
    for x, y, one in zip(text, text[1:], output.logprobs, strict=False):
        law = torch.log_softmax(target.logits[x, y], -1)
        assert one.logprob == pytest.approx(float(law[one.token_id]), abs=1e-5)
        assert one.rank == 1 + int((law > law[one.token_id]).sum())
        assert dict(one.top) == pytest.approx(dict(enumerate(law.tolist())), abs=1e-5)
