"""Prompts into the cache: in chunks, in groups, up to the last token and no further."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blockdraft.decoding.step import cycle
from blockdraft.types import SamplingParams
from tests.decoding.loops import begun, row_of
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
