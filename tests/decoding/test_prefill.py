"""Prompts into the cache: in chunks, in groups, up to the last token and no further."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from blockdraft.decoding.prefill import Piece, filled_passes, padded_passes
from blockdraft.decoding.step import cycle
from blockdraft.kernels import native
from blockdraft.types import SamplingParams
from tests.decoding.loops import begun, row_of
from tests.fakes.bfloat16 import native_target
from tests.fakes.codec import make_llm
from tests.fakes.drafting import WatchedDrafter, random_drafter
from tests.fakes.models import tiny_target
from tests.fakes.oracle import greedy_oracle, ids_of, random_prompts, solo
from tests.fakes.scripted import ScriptedDrafter, accept_first

PARAMS = SamplingParams(max_tokens=20)


@pytest.mark.parametrize("chunk_len", [1, 7, 16, 49, 50, 64])
@pytest.mark.parametrize("windows", [None, 16])
def test_bc29_chunks_change_neither_context_nor_drafts(chunk_len: int, windows: int | None) -> None:
    target, [prompt] = tiny_target(end_ids=()), random_prompts([50])
    oracles = {tuple(prompt): greedy_oracle(target, prompt, 20)}
    drafts, contexts = [], []
    for length in (512, chunk_len):
        inner = random_drafter(target, windows=windows)
        drafter = WatchedDrafter(inner, ScriptedDrafter(oracles, accept_first(3), 7, 160))
        row = row_of(prompt, PARAMS)
        state = begun(target, drafter, [row], num_slots=1, prefill_chunk_len=length)
        context: Any = state.context
        assert context.lens == [50]
        contexts.append((context.k[:, 0, :50].clone(), context.v[:, 0, :50].clone()))
        while not row.is_finished:
            cycle(state)
        assert tuple(row.output_ids) == oracles[tuple(prompt)]
        drafts.append(drafter.drafts)
    torch.testing.assert_close(contexts[0], contexts[1], atol=2e-4, rtol=1e-4)
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) >= 5


@pytest.mark.parametrize("chunk_len", [1, 8, 30, 64, 512])
def test_groups_of_prompts_equal_prompts_alone(chunk_len: int) -> None:
    """Prompts that fit one chunk together share a pass; longer ones are cut."""
    target, prompts = tiny_target(end_ids=()), random_prompts([1, 9, 40, 3, 3, 17, 8, 2])
    llm = make_llm(target, random_drafter(target), prefill_chunk_len=chunk_len)
    assert ids_of(llm.generate(prompts, PARAMS)) == ids_of(solo(target, prompts, PARAMS))


@pytest.mark.parametrize("chunk_len", [4, 24, 512])
def test_a_pass_is_never_larger_than_a_chunk(chunk_len: int) -> None:
    """Padding counts; a single prompt is cut, several are read in as many passes as needed."""
    target, prompts = tiny_target(), random_prompts([1, 9, 40, 3, 3, 17, 8, 2])
    shapes, forward = [], target.forward

    def noted(cache: Any, batch: Any) -> Any:
        shapes.append((tuple(batch.input_ids.shape), batch.logits_for))
        return forward(cache, batch)

    target.forward = noted  # type: ignore[method-assign]
    rows = [row_of(p, PARAMS) for p in prompts]
    begun(target, None, rows, prefill_chunk_len=chunk_len)
    assert all(b * t <= chunk_len for (b, t), _ in shapes)
    assert sum(b for (b, _), wanted in shapes if wanted == "last") == len(prompts)
    if chunk_len == 512:
        assert [shape for shape, _ in shapes] == [(8, 40)]


def test_no_logits_are_asked_for_before_the_last_chunk() -> None:
    target, [prompt] = tiny_target(), random_prompts([50])
    wanted, forward = [], target.forward

    def noted(cache: Any, batch: Any) -> Any:
        wanted.append(batch.logits_for)
        return forward(cache, batch)

    target.forward = noted  # type: ignore[method-assign]
    begun(target, None, [row_of(prompt, PARAMS)], prefill_chunk_len=16)
    assert wanted == ["none", "none", "none", "last"]


LENGTHS = [[50], [1, 9, 40, 3, 3, 17, 8, 2], [64, 64], [16] * 9, [100, 1, 1, 1, 1, 1, 1, 1], [3]]
Plan = Callable[[Sequence[int], int], Iterator[list[Piece]]]


@pytest.mark.parametrize("plan", [padded_passes, filled_passes])
@pytest.mark.parametrize("lens", LENGTHS)
@pytest.mark.parametrize("chunk_len", [1, 7, 16, 64, 512])
def test_passes_read_every_prompt_once_and_in_order(
    plan: Plan, lens: list[int], chunk_len: int
) -> None:
    read, last = [0] * len(lens), 0
    for pieces in plan(lens, chunk_len):
        prompts = [piece.prompt for piece in pieces]
        assert prompts == list(range(prompts[0], prompts[0] + len(prompts)))
        assert last <= prompts[0]
        assert sum(piece.length for piece in pieces) <= chunk_len
        for piece in pieces:
            assert piece.length >= 1
            assert piece.start == read[piece.prompt]
            read[piece.prompt] = piece.end
        # Only the last prompt of a pass may have more to read: the others choose tokens.
        assert all(read[i] == lens[i] for i in prompts[:-1])
        last = prompts[-1]
    assert read == lens


@pytest.mark.parametrize("lens", [[50], [10, 11, 12, 9, 13, 8], [64, 64, 3], [16] * 9])
def test_filled_passes_are_as_few_as_can_be(lens: list[int]) -> None:
    assert len(list(filled_passes(lens, 16))) == math.ceil(sum(lens) / 16)


def test_a_filled_pass_is_not_mostly_padding() -> None:
    """Features come padded: one long piece beside many short ones would make them large."""
    lens = [1] * 20 + [400] + [1] * 100
    passes = list(filled_passes(lens, 512))
    for pieces in passes:
        assert len(pieces) * max(piece.length for piece in pieces) <= 4 * 512
    assert len(passes) == 3


@pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
@pytest.mark.parametrize("chunk_len", [1, 7, 30, 64])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_prompts_of_filled_passes_equal_prompts_alone(chunk_len: int, temperature: float) -> None:
    """Bit for bit: tokens, log-probabilities and hidden states."""
    target, prompts = native_target(end_ids=()), random_prompts([1, 9, 40, 3, 3, 17, 8, 2])
    params = SamplingParams(max_tokens=6, temperature=temperature, seed=3, logprobs=2)
    alone = [
        next(make_llm(target).generate_each([p], params, record_layer_ids=(1, 3)))[1]
        for p in prompts
    ]
    llm = make_llm(target, max_batch_size=5, prefill_chunk_len=chunk_len)
    together = dict(llm.generate_each(prompts, params, record_layer_ids=(1, 3)))
    for i, want in enumerate(alone):
        assert together[i].token_ids == want.token_ids
        assert together[i].logprobs == want.logprobs
        assert torch.equal(together[i].features, want.features)  # type: ignore[arg-type]


@pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
def test_native_passes_are_filled() -> None:
    target, prompts = native_target(), random_prompts([1, 9, 40, 3, 3, 17, 8, 2])
    seen, forward = [], target.forward

    def noted(cache: Any, batch: Any) -> Any:
        seen.append((batch.lens, batch.logits_for))
        return forward(cache, batch)

    target.forward = noted  # type: ignore[method-assign]
    begun(target, None, [row_of(p, PARAMS) for p in prompts], prefill_chunk_len=24)
    assert seen == [
        ((1, 9, 14), "last"),
        ((24,), "none"),
        ((2, 3, 3, 16), "last"),
        ((1, 8, 2), "last"),
    ]
