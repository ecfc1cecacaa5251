"""Each row of a batch is its own solo run, whatever its neighbours ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from blockdraft.drafters.lookup_first import LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.engine.outputs import Output
from blockdraft.targets.base import Target
from blockdraft.types import SamplingParams
from tests.fakes.codec import make_llm
from tests.fakes.drafting import PointDrafter, SparseDrafter, VariedDrafter, random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import ids_of, random_prompts, script_for, solo
from tests.fakes.scripted import TableTarget, accept_all, accept_first, accept_none

FEW = 6
#: Greedy and sampled, filtered, penalised, ending early and late, all at once.
MIXED = [
    SamplingParams(max_tokens=14),
    SamplingParams(max_tokens=16, temperature=0.7, seed=42),
    SamplingParams(max_tokens=9, temperature=1.0, top_k=1, seed=5),
    SamplingParams(max_tokens=17, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(max_tokens=15, min_tokens=12, stop_token_ids=(0, 1, 2)),
    SamplingParams(max_tokens=12, temperature=1.2, top_p=0.8, presence_penalty=1.0, seed=6),
    SamplingParams(max_tokens=13, temperature=0.9, min_p=0.2, logit_bias={3: 1.5}, seed=7),
    SamplingParams(max_tokens=11, temperature=1e-7, logprobs=3, seed=8),
]


def few_token_prompts() -> list[list[int]]:
    return [[token % FEW for token in p] for p in random_prompts([1, 9, 40, 2, 17, 8, 5, 3])]


def sparse(vocab_size: int) -> SparseDrafter:
    gen = torch.Generator().manual_seed(1)
    ids = torch.stack([torch.randperm(vocab_size, generator=gen)[:4] for _ in range(vocab_size)])
    return SparseDrafter(ids, torch.softmax(torch.randn(vocab_size, 4, generator=gen), -1), 5)


DRAFTERS: dict[str, Callable[[Target], Any]] = {
    "none": lambda target: None,
    "ngram": lambda target: NgramDrafter(6, min_n=1),
    "point": lambda target: PointDrafter(torch.arange(FEW).roll(1), 4),
    "sparse": lambda target: sparse(FEW),
    "dflash": lambda target: random_drafter(target, "dflash"),
    "dflash2": lambda target: random_drafter(target, "dflash2", windows=9),
    "dflash2+ngram": lambda target: LookupFirst(
        NgramDrafter(7, min_n=2), random_drafter(target, "dflash2")
    ),
}


def alone(target: Target, make: Callable[[Target], Any], prompts: Any, params: Any) -> list[Output]:
    """Each request by itself, with the same drafter: sampled rows depend on what is drafted."""
    llm = make_llm(target, make(target))
    return [llm.generate([p], one)[0] for p, one in zip(prompts, params, strict=True)]


@pytest.mark.parametrize(
    ("drafter", "batch_size"), [(name, 3) for name in DRAFTERS] + [("sparse", 8), ("dflash2", 8)]
)
def test_bc22_a_mixed_batch_is_its_rows(drafter: str, batch_size: int) -> None:
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts()
    llm = make_llm(target, DRAFTERS[drafter](target), max_batch_size=batch_size)
    outputs = llm.generate(prompts, MIXED)
    expected = alone(target, DRAFTERS[drafter], prompts, MIXED)
    assert ids_of(outputs) == ids_of(expected)
    assert [o.speculation for o in outputs] == [o.speculation for o in expected]
    assert [o.finish_reason for o in outputs] == [o.finish_reason for o in expected]


def test_bc22_greedy_rows_of_a_mixed_batch_are_plain() -> None:
    """Beside sampled rows, greedy ones still say what the target alone says."""
    target, prompts = tiny_target(vocab_size=FEW, end_ids=()), few_token_prompts()
    expected = ids_of(solo(target, prompts, MIXED))
    for make in DRAFTERS.values():
        said = ids_of(make_llm(target, make(target)).generate(prompts, MIXED))
        for i, params in enumerate(MIXED):
            if params.is_greedy or params.top_k == 1:
                assert said[i] == expected[i]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_bc19_a_seed_gives_the_same_text_alone_and_among_others(drafter: str) -> None:
    target, make = tiny_target(vocab_size=FEW, end_ids=()), DRAFTERS[drafter]
    prompts = [[2, 5, 1]] * 4
    params = [SamplingParams(max_tokens=20, temperature=1.5, seed=s) for s in (1, 42, 2, 3)]
    first, again = (alone(target, make, prompts[:1], params[1:2]) for _ in range(2))
    beside = make_llm(target, make(target)).generate(prompts, params)
    assert ids_of(first) == ids_of(again) == [beside[1].token_ids]
    assert len(set(ids_of(beside))) == 4
    assert [output.seed for output in beside] == [1, 42, 2, 3]


def test_bc19_without_a_seed_texts_differ_and_the_seed_is_reported() -> None:
    llm = make_llm(tiny_target(vocab_size=FEW, end_ids=()), sparse(FEW))
    params = SamplingParams(max_tokens=20, temperature=1.5)
    first, second = llm.generate([[2, 5]] * 2, params)
    assert first.token_ids != second.token_ids
    told = SamplingParams(max_tokens=20, temperature=1.5, seed=first.seed)
    assert llm.generate([[2, 5]], told)[0].token_ids == first.token_ids


@pytest.mark.parametrize("block", [2, 8])
@pytest.mark.parametrize("method", ["scripted", "dflash2"])
def test_bc32_rows_of_other_lengths_that_end_at_other_times(method: str, block: int) -> None:
    """Prompts of 1, 9 and 40 tokens; row 2 ends in its first block, row 1 has 3 tokens to say."""
    target, prompts = tiny_target(end_ids=()), random_prompts([1, 9, 40])
    free = ids_of(solo(target, prompts, SamplingParams(max_tokens=20)))
    params = [
        SamplingParams(max_tokens=20),
        SamplingParams(max_tokens=3),
        SamplingParams(max_tokens=20, stop_token_ids=(free[2][1],)),
    ]
    script = VariedDrafter(script_for(target, prompts, SamplingParams(max_tokens=20), accept_all,
                                      block - 1))  # fmt: skip
    drafter = script if method == "scripted" else random_drafter(target, block_size=block)
    outputs = make_llm(target, drafter).generate(prompts, params)
    assert ids_of(outputs) == [free[0], free[1][:3], free[2][:2]]


@pytest.mark.parametrize("drafter", ["none", "sparse"])
def test_bc41_padding_is_never_context(drafter: str) -> None:
    """Token 0 begins texts, ends them and fills batches: caches hold only what was said."""
    logits = torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(2))
    logits[..., 0] = -9.0  # so the end does not come by itself
    prompts, params = [[0, 3], [0, 5, 0, 2, 7, 1, 1], [0]], SamplingParams(max_tokens=9)
    seen: list[Any] = []

    class Watched(TableTarget):
        def forward(self, cache: Any, batch: Any) -> Any:
            out = super().forward(cache, batch)
            seen.append([list(ids) for ids in cache.ids])
            return out

    make = {"none": lambda: None, "sparse": lambda: sparse(8)}[drafter]
    target = Watched(logits, end_ids=(0,))
    outputs = make_llm(target, make()).generate(prompts, params)
    assert ids_of(outputs) == ids_of(solo(TableTarget(logits, end_ids=(0,)), prompts, params))
    texts = [[*p, *o.token_ids] for p, o in zip(prompts, outputs, strict=True)]
    assert seen[0] == prompts  # read exactly, without the padding of the shorter ones
    if drafter == "none":
        assert all(ids in [text[: len(ids)] for text in texts] for step in seen for ids in step)


@pytest.mark.parametrize("pattern", [accept_all, accept_first(2), accept_none])
def test_the_same_prompt_many_times(pattern: Any) -> None:
    target, prompt = tiny_target(end_ids=()), random_prompts([7])[0]
    params = [SamplingParams(max_tokens=n) for n in (5, 20, 1, 12, 20)]
    script = script_for(target, [prompt], SamplingParams(max_tokens=20), pattern)
    outputs = make_llm(target, script, max_batch_size=2).generate([prompt] * 5, params)
    longest = outputs[1].token_ids
    assert ids_of(outputs) == [longest[:n] for n in (5, 20, 1, 12, 20)]
