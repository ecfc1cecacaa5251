"""Whole passes of small targets against a float64 decoder, and against themselves bit for bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.errors import CapacityError, ConfigError, UnsupportedError
from blockdraft.kernels.native import ModelWeights, NativePass, Span, set_num_threads
from tests.kernels.native.native_reference import (
    Reference,
    empty_cache,
    random_weights,
    relative_error,
)

MODELS = {
    "llama": {},
    "llama_untied_biased": {"is_tied": False, "biases": True, "head_dim": 64, "width": 72},
    "qwen3": {"qk_norm": True, "num_heads": 6, "num_kv_heads": 3, "head_dim": 80, "ffn_width": 50},
    "mistral": {"windows": (20, None), "head_dim": 128, "num_heads": 4, "num_kv_heads": 1},
    "no_groups": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 24, "windows": (1, 130)},
}


def random_ids(count: int, seed: int = 0, vocab: int = 61) -> Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


def logits_row_by_row(model: NativePass, weights: ModelWeights, ids: Tensor) -> Tensor:
    k, v = empty_cache(weights)
    rows = [
        model.forward(k, v, ids[i : i + 1], [Span(0, i, 1)], logits=torch.float32).logits
        for i in range(len(ids))
    ]
    return torch.cat([row for row in rows if row is not None])


@pytest.mark.parametrize("name", MODELS)
def test_pass_matches_float64(isa: str, name: str) -> None:
    weights = random_weights(**MODELS[name])
    model, reference = NativePass(weights, isa), Reference(weights)
    k, v = empty_cache(weights)
    ids = random_ids(300)
    for span in (Span(1, 0, 270), Span(1, 270, 8), Span(1, 278, 1)):
        rows = ids[span.start : span.start + span.num_rows]
        out = model.forward(
            k, v, rows, [span], logits=torch.float32, tap_layers=(1, 0), hidden=True
        )
        expected = reference.forward(rows, span)
        assert out.logits is not None
        assert out.features is not None
        assert out.hidden is not None
        # Activations are rounded to bfloat16 (2**-9 each) before every product of two layers.
        assert relative_error(out.logits, expected.logits) < 0.012
        assert relative_error(out.hidden, expected.hidden) < 0.012
        taps = torch.cat((expected.taps[1], expected.taps[0]), dim=1)
        assert relative_error(out.features, taps) < 0.012
    end = 279
    assert relative_error(k[:, 1, :end], reference.k[:, 1, :end]) < 0.012
    assert relative_error(v[:, 1, :end], reference.v[:, 1, :end]) < 0.012


@pytest.mark.parametrize("name", MODELS)
def test_eight_rows_are_eight_single_rows_bit_for_bit(isa: str, name: str) -> None:
    weights = random_weights(**MODELS[name])
    model = NativePass(weights, isa)
    ids = random_ids(150)
    single = logits_row_by_row(model, weights, ids)
    for width in (8, 3, 64, 150):
        k, v = empty_cache(weights)
        for start in range(0, len(ids), width):
            rows = ids[start : start + width]
            out = model.forward(k, v, rows, [Span(0, start, len(rows))], logits=torch.float32)
            assert out.logits is not None
            assert torch.equal(out.logits, single[start : start + width]), (width, start)


@settings(max_examples=10, deadline=None)
@given(
    lens=st.lists(st.integers(1, 40), min_size=3, max_size=3),
    starts=st.lists(st.integers(0, 300), min_size=3, max_size=3),
    order=st.permutations(range(3)),
    threads=st.integers(1, 3),
    name=st.sampled_from(sorted(MODELS)),
)
def test_batch_mates_change_nothing(
    isa: str, lens: list[int], starts: list[int], order: list[int], threads: int, name: str
) -> None:
    weights = random_weights(**MODELS[name])
    model = NativePass(weights, isa)
    k, v = empty_cache(weights)
    alone_k, alone_v = k.clone(), v.clone()
    spans = [Span(slot, starts[slot], lens[slot]) for slot in order]
    ids = [random_ids(span.num_rows, seed=span.slot) for span in spans]
    set_num_threads(threads)
    out = model.forward(k, v, torch.cat(ids), spans, logits=torch.float32, tap_layers=(0,))
    set_num_threads(1)
    assert out.logits is not None
    assert out.features is not None
    alone = [
        model.forward(alone_k, alone_v, rows, [span], logits=torch.float32, tap_layers=(0,))
        for rows, span in zip(ids, spans, strict=True)
    ]
    assert torch.equal(out.logits, torch.cat([a.logits for a in alone if a.logits is not None]))
    taps = [a.features for a in alone if a.features is not None]
    assert torch.equal(out.features, torch.cat(taps))
    assert torch.equal(k, alone_k)
    assert torch.equal(v, alone_v)


def test_pieces_of_a_long_pass_are_one_pass(isa: str) -> None:
    weights = random_weights(windows=(50,), positions=1300)
    model = NativePass(weights, isa)
    ids = random_ids(1200)
    k, v = empty_cache(weights, slots=2, max_len=1300)
    spans = [Span(0, 0, 700), Span(1, 3, 500)]
    whole = model.forward(
        k, v, ids, spans, logits=torch.float32, head_rows=(0, 511, 512, 699, 700, 1199)
    )
    k2, v2 = empty_cache(weights, slots=2, max_len=1300)
    first = model.forward(k2, v2, ids[:700], spans[:1], logits=torch.float32)
    second = model.forward(k2, v2, ids[700:], spans[1:], logits=torch.float32)
    assert whole.logits is not None
    assert first.logits is not None
    assert second.logits is not None
    expected = torch.cat((first.logits[[0, 511, 512, 699]], second.logits[[0, 499]]))
    assert torch.equal(whole.logits, expected)
    assert torch.equal(k, k2)


def test_rows_beyond_the_sequence_are_never_read(isa: str) -> None:
    weights = random_weights()
    model = NativePass(weights, isa)
    ids = random_ids(40)
    results = []
    for filler in (0.0, float("nan")):
        k, v = (torch.full_like(cache, filler) for cache in empty_cache(weights))
        out = model.forward(k, v, ids, [Span(2, 0, 40)], logits=torch.float32)
        assert out.logits is not None
        results.append(out.logits)
    assert torch.equal(results[0], results[1])


def test_one_call_may_hold_nothing_of_the_head(isa: str) -> None:
    weights = random_weights()
    k, v = empty_cache(weights)
    out = NativePass(weights, isa).forward(k, v, random_ids(5), [Span(0, 0, 5)], head_rows=())
    assert out.logits is None
    assert out.top_ids is None
    assert out.features is None


def test_empty_batch_is_nothing(isa: str) -> None:
    weights = random_weights()
    k, v = empty_cache(weights)
    before = k.clone()
    out = NativePass(weights, isa).forward(k, v, random_ids(0), [], logits=torch.float32)
    assert out.logits is not None
    assert out.logits.shape == (0, 61)
    assert torch.equal(k, before)


def test_memory_is_told(isa: str) -> None:
    weights = random_weights()
    target = NativePass(weights, isa)
    drafter = NativePass(random_weights_sharing(target), isa)
    assert target.num_bytes() > 2 * 2 * (128 * 64 + 64 * 64 + 3 * 96 * 64)
    assert drafter.num_bytes() < target.num_bytes()


def random_weights_sharing(target: NativePass) -> ModelWeights:
    return dataclasses.replace(random_weights(), head=target.head)


def test_a_shared_head_gives_the_same_logits(isa: str) -> None:
    weights = random_weights()
    target = NativePass(weights, isa)
    sharing = NativePass(random_weights_sharing(target), isa)
    k, v = empty_cache(weights)
    ids = random_ids(6)
    first = target.forward(k, v, ids, [Span(0, 0, 6)], logits=torch.float32).logits
    second = sharing.forward(k, v, ids, [Span(0, 0, 6)], logits=torch.float32).logits
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


def test_mistakes_are_named(isa: str) -> None:
    weights = random_weights()
    model = NativePass(weights, isa)
    k, v = empty_cache(weights)
    ids = random_ids(4)
    with pytest.raises(CapacityError, match="position 400 is beyond the last one"):
        model.forward(k, v, ids, [Span(0, 397, 4)])
    with pytest.raises(ConfigError, match="slots are 0 to 2"):
        model.forward(k, v, ids, [Span(3, 0, 4)])
    with pytest.raises(ConfigError, match="spans hold 3 rows; 4 are given"):
        model.forward(k, v, ids, [Span(0, 0, 3)])
    with pytest.raises(ConfigError, match="token id 61"):
        model.forward(k, v, torch.tensor([61]), [Span(0, 0, 1)])
    with pytest.raises(ConfigError, match="token id -1"):
        model.forward(k, v, torch.tensor([-1]), [Span(0, 0, 1)])
    with pytest.raises(ConfigError, match=r"k is torch\.float32"):
        model.forward(k.float(), v, ids, [Span(0, 0, 4)])
    with pytest.raises(ConfigError, match="must ascend"):
        model.forward(k, v, ids, [Span(0, 0, 4)], head_rows=(2, 1))
    with pytest.raises(ConfigError, match="layers are 0 to 1"):
        model.forward(k, v, ids, [Span(0, 0, 4)], tap_layers=(2,))
    with pytest.raises(ConfigError, match="top_k is 65"):
        model.forward(k, v, ids, [Span(0, 0, 4)], top_k=65)
    with pytest.raises(ConfigError, match="only drafters have a context"):
        model.append_context(k, v, torch.zeros(1, 64).bfloat16(), [Span(0, 0, 1)])
    with pytest.raises(UnsupportedError, match="head width 12"):
        NativePass(random_weights(head_dim=12), isa)
    with pytest.raises(ConfigError, match="4 heads cannot share 3"):
        NativePass(random_weights(num_kv_heads=3), isa)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_many_sequences_are_each_alone_bit_for_bit(isa: str, name: str) -> None:
    """Threads take whole runs of sequences here, and look ahead from one to the next."""
    weights = random_weights(**MODELS[name])
    model, num, ids = NativePass(weights, isa), 40, random_ids(40)
    k, v = empty_cache(weights, slots=num)
    spans = [Span(slot, 7 * (num - 1 - slot) % 271, 1) for slot in range(num)]
    together = model.forward(k, v, ids, spans, logits=torch.float32).logits
    assert together is not None
    for i, span in enumerate(spans):
        alone = model.forward(k, v, ids[i : i + 1], [span], logits=torch.float32).logits
        assert alone is not None
        assert torch.equal(alone[0], together[i]), span
