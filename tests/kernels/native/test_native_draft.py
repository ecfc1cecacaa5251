"""Drafter passes: context from features, blocks that see it and themselves, convolutions."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels.native import ModelWeights, NativePass, Span
from tests.kernels.native.native_reference import (
    Reference,
    empty_cache,
    random_weights,
    relative_error,
)

DRAFTERS = {
    "dflash": {"causal": (False,), "qk_norm": True},
    "dflash_windowed": {"causal": (False, True), "windows": (16, None), "num_taps": 3},
    "dflash2": {"causal": (False,), "windows": (24,), "conv_group": 16},
    "dflash2_causal": {"conv_group": 8, "width": 72, "head_dim": 24, "windows": (5,)},
}


def drafter_weights(name: str) -> ModelWeights:
    return random_weights(**{"num_taps": 2, **DRAFTERS[name]})


def random_features(weights: ModelWeights, rows: int, seed: int = 0) -> Tensor:
    assert weights.feature is not None
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, weights.feature.shape[1], generator=generator).bfloat16()


def block_ids(num_rows: int) -> Tensor:
    return torch.cat((torch.tensor([5]), torch.full((num_rows - 1,), 60)))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("context_len", [1, 15, 16, 17, 129, 300])
def test_drafts_match_float64(isa: str, name: str, context_len: int) -> None:
    weights = drafter_weights(name)
    model, reference = NativePass(weights, isa), Reference(weights)
    k, v = empty_cache(weights)
    features = random_features(weights, context_len)
    model.append_context(k, v, features, [Span(1, 0, context_len)])
    reference.append_context(features, Span(1, 0, context_len))
    assert relative_error(k[:, 1, :context_len], reference.k[:, 1, :context_len]) < 0.01
    assert relative_error(v[:, 1, :context_len], reference.v[:, 1, :context_len]) < 0.01
    for width in (8, 3):  # the second block must not see the first one's keys
        span = Span(1, context_len, width)
        out = model.forward(k, v, block_ids(width), [span], logits=torch.float32)
        assert out.logits is not None
        expected = reference.forward(block_ids(width), span).logits
        assert relative_error(out.logits, expected) < 0.03


@pytest.mark.parametrize("window", [1, 3, 40])
def test_a_block_that_reaches_far_beyond_its_window(isa: str, window: int) -> None:
    """Whole chunks of the block's own keys are then out of sight of its first rows."""
    weights = random_weights(num_taps=2, windows=(window,), causal=(False,))
    model, reference = NativePass(weights, isa), Reference(weights)
    k, v = empty_cache(weights)
    features, span = random_features(weights, 60), Span(1, 60, 300)
    model.append_context(k, v, features, [Span(1, 0, 60)])
    reference.append_context(features, Span(1, 0, 60))
    out = model.forward(k, v, block_ids(300), [span], logits=torch.float32)
    assert out.logits is not None
    assert relative_error(out.logits, reference.forward(block_ids(300), span).logits) < 0.03


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_block_leaves_no_trace_in_the_context(isa: str, name: str) -> None:
    weights = drafter_weights(name)
    model = NativePass(weights, isa)
    k, v = empty_cache(weights)
    model.append_context(k, v, random_features(weights, 20), [Span(0, 0, 20)])
    before_k, before_v = k.clone(), v.clone()
    model.forward(k, v, block_ids(8), [Span(0, 20, 8)], top_k=1)
    assert torch.equal(k, before_k)
    assert torch.equal(v, before_v)


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, 699), max_size=4, unique=True))
@pytest.mark.parametrize("name", ["dflash2", "dflash_windowed"])
def test_context_in_chunks_equals_context_at_once(isa: str, name: str, cuts: list[int]) -> None:
    """BC-29: a long prompt appended chunk by chunk."""
    weights = random_weights(**{"num_taps": 2, **DRAFTERS[name], "positions": 700})
    model = NativePass(weights, isa)
    features = random_features(weights, 700)
    k, v = empty_cache(weights, max_len=700)
    chunk_k, chunk_v = k.clone(), v.clone()
    model.append_context(k, v, features, [Span(2, 0, 700)])
    edges = [0, *sorted(cuts), 700]
    for start, end in itertools.pairwise(edges):
        span = Span(2, start, end - start)
        model.append_context(chunk_k, chunk_v, features[start:end], [span])
    assert torch.equal(k, chunk_k)
    assert torch.equal(v, chunk_v)


@pytest.mark.parametrize("name", DRAFTERS)
def test_batch_mates_change_no_draft(isa: str, name: str) -> None:
    weights = drafter_weights(name)
    model = NativePass(weights, isa)
    k, v = empty_cache(weights)
    spans = [Span(0, 130, 8), Span(2, 7, 5), Span(1, 31, 8)]
    for span in spans:
        features = random_features(weights, span.start, seed=span.slot)
        model.append_context(k, v, features, [Span(span.slot, 0, span.start)])
    ids = torch.cat([block_ids(span.num_rows) for span in spans])
    together = model.forward(k, v, ids, spans, logits=torch.float32, hidden=True)
    alone = [
        model.forward(k, v, block_ids(s.num_rows), [s], logits=torch.float32, hidden=True)
        for s in spans
    ]
    assert together.logits is not None
    assert together.hidden is not None
    assert torch.equal(
        together.logits, torch.cat([a.logits for a in alone if a.logits is not None])
    )
    assert torch.equal(
        together.hidden, torch.cat([a.hidden for a in alone if a.hidden is not None])
    )


def test_many_blocks_are_one_pass(isa: str) -> None:
    """More rows than one piece (512) holds, and no whole number of blocks: they stay whole."""
    weights = drafter_weights("dflash2")
    model = NativePass(weights, isa)
    k, v = empty_cache(weights, slots=75, max_len=64)
    spans = [Span(slot, 10 + slot % 20, 7) for slot in range(75)]
    context = [Span(s.slot, 0, s.start) for s in spans]
    model.append_context(k, v, random_features(weights, sum(s.num_rows for s in context)), context)
    ids = torch.cat([block_ids(7) for _ in spans])
    together = model.forward(k, v, ids, spans, logits=torch.float32).logits
    assert together is not None
    for i in (0, 40, 72, 73, 74):
        alone = model.forward(k, v, block_ids(7), [spans[i]], logits=torch.float32).logits
        assert alone is not None
        assert torch.equal(together[7 * i : 7 * i + 7], alone), i


def test_a_block_without_context(isa: str) -> None:
    weights = drafter_weights("dflash2")
    model, reference = NativePass(weights, isa), Reference(weights)
    k, v = empty_cache(weights)
    out = model.forward(k, v, block_ids(4), [Span(0, 0, 4)], logits=torch.float32)
    assert out.logits is not None
    assert relative_error(out.logits, reference.forward(block_ids(4), Span(0, 0, 4)).logits) < 0.03


def test_mistakes_are_named(isa: str) -> None:
    weights = drafter_weights("dflash2")
    model = NativePass(weights, isa)
    k, v = empty_cache(weights)
    with pytest.raises(ConfigError, match=r"features is .*bfloat16 \[\.\.\., 128\]"):
        model.append_context(k, v, torch.zeros(3, 64).bfloat16(), [Span(0, 0, 3)])
    with pytest.raises(ConfigError, match="spans hold 2 rows; 3 are given"):
        model.append_context(k, v, torch.zeros(3, 128).bfloat16(), [Span(0, 0, 2)])
