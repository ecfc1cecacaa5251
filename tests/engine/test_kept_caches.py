"""Caches in memory that earlier calls have used: every answer is that of a fresh engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from blockdraft.cache import kept_memory
from blockdraft.cache.kept_memory import KeptMemory
from blockdraft.drafters.native_backbone import NativeBackbone
from blockdraft.engine.llm import LLM
from blockdraft.engine.outputs import Output
from blockdraft.kernels import native
from blockdraft.kernels.huge_pages import huge_zeros
from blockdraft.targets.base import PassOutput, RowBatch
from blockdraft.targets.native import NativeTarget
from blockdraft.types import SamplingParams
from tests.drafters.tiny import random_tensors, tiny_drafter, tiny_drafter_config
from tests.fakes.bfloat16 import exact_target, native_target
from tests.fakes.codec import make_llm
from tests.fakes.models import random_weights, tiny_config, tiny_target
from tests.fakes.oracle import random_prompts

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")

WINDOWS = (16, None, 7, None)
#: A token that no prompt holds.
UNSAID = 151

#: One call after the other: first ones, shorter, longer, more, and one alone.
CALLS = [[90, 40, 61], [5, 3], [120, 100, 8, 110], [1] * 8, [47]]
GREEDY = SamplingParams(max_tokens=20, logprobs=3)
SAMPLED = SamplingParams(max_tokens=20, temperature=0.8, seed=5, logprobs=3)


@pytest.fixture(autouse=True)
def _small_caches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_memory, "_LEAST_BYTES", 64)


def engine(method: str | None, weights: Any = None) -> LLM:
    """Windows in target and drafter; four slots, so that some requests take used ones."""
    target = native_target(weights, end_ids=(), windows=WINDOWS)
    drafter = None
    if method is not None:
        config = tiny_drafter_config(method, windows=(12, None))
        drafter = type(tiny_drafter(method)).from_tensors(
            config, random_tensors(config), dtype=torch.bfloat16
        )
        drafter.bind(target)
    return make_llm(target, drafter, max_batch_size=4)


def memories(llm: LLM) -> list[KeptMemory]:
    assert isinstance(llm.target, NativeTarget)
    found = [llm.target.cache_memory]
    if llm.drafter is not None:
        backbone = llm.drafter.model.backbone  # type: ignore[attr-defined]
        assert isinstance(backbone, NativeBackbone)
        found.append(backbone.context_memory)
    return found


def spoil(llm: LLM) -> int:
    """Make all that is kept NaN; how many bytes that are."""
    for memory in memories(llm):
        for kept in memory._kept.values():
            kept.fill_(0xFF)
            assert bool(kept.view(torch.bfloat16).isnan().all())
    return sum(memory.num_bytes() for memory in memories(llm))


def said(outputs: list[Output]) -> list[Any]:
    """Tokens, and log-probabilities as bits: equal logits only."""
    return [(o.token_ids, o.logprobs, o.finish_reason) for o in outputs]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", [None, "dflash", "dflash2"])
def test_answers_are_bit_for_bit_those_of_a_fresh_engine(
    method: str | None, params: SamplingParams
) -> None:
    used, poisoned = engine(method), engine(method)
    places = []
    for seed, lens in enumerate(CALLS):
        prompts = random_prompts(lens, seed)
        want = said(engine(method).generate(prompts, params))
        assert said(used.generate(prompts, params)) == want
        assert said(poisoned.generate(prompts, params)) == want
        assert spoil(poisoned) > 0
        places.append([set(memory._kept) for memory in memories(used)])
    for before, after in zip(places[3], places[4], strict=True):
        assert before == after  # the last call ran in the memory of the one before it


@pytest.mark.parametrize("method", [None, "dflash2"])
def test_a_failed_request_leaves_nothing(method: str | None) -> None:
    """NaN keys, values and features of one request, then another engine call in their place."""
    weights = random_weights(tiny_config(windows=WINDOWS))
    weights["model.embed_tokens.weight"][UNSAID] = torch.nan
    llm, prompts = engine(method, weights), random_prompts([30, 20, 40])
    prompts[0][3] = UNSAID
    outputs = llm.generate(prompts, GREEDY)
    assert [o.finish_reason for o in outputs] == ["error", "length", "length"]
    later = random_prompts([60, 2, 33, 17], seed=9)
    assert said(llm.generate(later, GREEDY)) == said(engine(method).generate(later, GREEDY))


@pytest.mark.parametrize("method", [None, "dflash2"])
def test_generators_of_one_engine_may_run_in_turns(method: str | None) -> None:
    llm, prompts = engine(method), random_prompts([33, 50, 9, 70, 21])
    want = said(engine(method).generate(prompts, GREEDY))
    llm.generate(prompts, GREEDY)
    spoil(llm)
    streams = [llm.stream(prompt, GREEDY) for prompt in prompts[:2]]
    firsts = [next(stream) for stream in streams]
    assert all(piece.output is None for piece in firsts)
    assert said(llm.generate(prompts, GREEDY)) == want
    ends = [list(stream)[-1].output for stream in streams]
    assert said([end for end in ends if end is not None]) == want[:2]


def drop(pieces: Iterator[Any]) -> None:
    next(pieces)


def close(pieces: Iterator[Any]) -> None:
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("leave", [drop, close])
def test_an_abandoned_run_gives_its_memory_back(leave: Callable[[Iterator[Any]], None]) -> None:
    llm, prompts = engine("dflash2"), random_prompts([33, 50, 9])
    want = said(engine("dflash2").generate(prompts, GREEDY))
    leave(llm.stream(prompts[0], GREEDY))
    leave(llm.generate_each(prompts, GREEDY))
    assert spoil(llm) > 0
    assert said(llm.generate(prompts, GREEDY)) == want


def test_a_run_that_raised_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, prompts = engine(None), random_prompts([33, 50, 9])
    want = said(engine(None).generate(prompts, GREEDY))
    forward, passes = llm.target.forward, iter(range(100))

    def failing(cache: Any, batch: RowBatch) -> PassOutput:
        if next(passes) == 3:
            raise RuntimeError("stopped")
        return forward(cache, batch)

    with monkeypatch.context() as patched:
        patched.setattr(llm.target, "forward", failing)
        with pytest.raises(RuntimeError, match="stopped"):
            llm.generate(prompts, GREEDY)
    assert spoil(llm) > 0
    assert said(llm.generate(prompts, GREEDY)) == want


def test_a_cache_of_anything_gives_the_bits_of_a_cache_of_zeros() -> None:
    """Passes of every kind, with rows taken back and slots moved between them."""
    target = native_target(end_ids=(), windows=WINDOWS)
    results = []
    for take in (huge_zeros, nans):
        target.cache_memory.take = take
        cache = target.new_cache(3, 200)
        gen, bits = torch.Generator().manual_seed(0), []
        for lens, slot in [((70, 1, 40), 0), ((60,), 0), ((8, 3, 1), 0), ((5, 8), 1)]:
            ids = torch.randint(150, (len(lens), max(lens)), generator=gen)
            out = target.forward(cache, RowBatch(ids, lens, slot, "all", (0, 3)))
            bits += [out.logits, out.features]
            cache.crop(1, max(0, cache.lens[1] - 1))
        cache.crop(0, 0)
        cache.move(2, 0)
        ids = torch.randint(150, (2, 6), generator=gen)
        bits.append(target.forward(cache, RowBatch(ids, (6, 6))).logits)
        results.append(bits)
    for zeros, anything in zip(*results, strict=True):
        assert torch.equal(zeros, anything)


def nans(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=device)


@pytest.mark.parametrize("make", [tiny_target, exact_target])
def test_targets_that_read_masked_rows_begin_with_zeros(make: Callable[..., Any]) -> None:
    """Theirs is not kept: zero times what another call left could be NaN."""
    target = make()
    target.new_cache(2, 50).k.fill_(torch.nan)
    assert not bool(target.new_cache(2, 50).k.any())
