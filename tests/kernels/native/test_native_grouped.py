"""Grouped weights: the very bits of the same model with its weights dequantised beforehand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.kernels.grouped_weight import GROUP, GroupedWeight, stack
from blockdraft.kernels.native import (
    LayerWeights,
    ModelWeights,
    NativeLinear,
    NativePass,
    PackedLinear,
    Span,
    set_num_threads,
)
from blockdraft.kernels.native.grouped import unpack_grouped
from blockdraft.kernels.native.linear import interleave_gate_up
from tests.kernels.native.native_reference import empty_cache, random_weights

_MATRICES = ("qkv", "output", "gate_up", "down")
#: Halves of every kind: normal, subnormal, the greatest, both zeros.
_EDGES = torch.tensor([0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, 1.0, -0.333]).half()


def random_grouped(n: int, k: int, bits: int, seed: int, *, edges: bool = False) -> GroupedWeight:
    gen = torch.Generator().manual_seed(seed)
    integers = torch.randint(0, 2**bits, (n, k), dtype=torch.uint8, generator=gen)
    scales, offsets = (torch.randn(2, n, k // GROUP, generator=gen) * k**-0.5 / 8).half()
    if edges:
        which = torch.randint(0, len(_EDGES), (2, n, k // GROUP), generator=gen)
        scales, offsets = _EDGES[which]
    return GroupedWeight(integers, scales, offsets, bits)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 130),
    steps=st.integers(1, 22),
    rows=st.integers(1, 80),
    bits=st.sampled_from((4, 8)),
    seed=st.integers(0, 2**31),
    edges=st.booleans(),
)
def test_products_have_the_bits_of_the_dequantised_weight(
    isa: str, n: int, steps: int, rows: int, bits: int, seed: int, edges: bool
) -> None:
    weight = random_grouped(n, steps * GROUP, bits, seed, edges=edges)
    x = torch.randn(rows, steps * GROUP, generator=torch.Generator().manual_seed(seed)).bfloat16()
    bias = torch.linspace(-1, 1, n)
    expected = NativeLinear(weight.dequantise(), bias, isa)(x, torch.float32)
    assert torch.equal(NativeLinear(weight, bias, isa)(x, torch.float32), expected)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("n", "k"), [(96, 576), (33, 1536)])
def test_a_row_has_the_same_bits_at_any_row_count(isa: str, n: int, k: int, bits: int) -> None:
    weight = random_grouped(n, k, bits, 1)
    x = torch.randn(300, k, generator=torch.Generator().manual_seed(2)).bfloat16()
    layer = NativeLinear(weight, None, isa)
    whole = layer(x, torch.float32)
    for count in (1, 8, 16, 17, 33, 64, 257):
        parts = [layer(part, torch.float32) for part in x.split(count)]
        assert torch.equal(torch.cat(parts), whole), f"{count} rows at a time"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n", [1, 32, 45])
def test_packing_loses_nothing(n: int, bits: int) -> None:
    weight = random_grouped(n, 96, bits, 3, edges=True)
    packed = PackedLinear(weight)
    found = unpack_grouped(packed.packed, n)
    assert found.bits == bits
    for name in ("integers", "scales", "offsets"):
        assert torch.equal(getattr(found, name), getattr(weight, name)), name
    ids = torch.tensor([n - 1, 0, n // 2])
    assert torch.equal(packed.rows(ids), weight.dequantise()[ids])
    some = packed.packed_rows(ids)
    assert isinstance(some, GroupedWeight)
    assert torch.equal(some.integers, weight.integers[ids])


def test_a_stack_is_as_wide_as_its_widest_part() -> None:
    parts = [random_grouped(3, 64, bits, bits) for bits in (4, 8)]
    both = stack(parts)
    assert both.bits == 8
    assert torch.equal(both.dequantise(), torch.cat([part.dequantise() for part in parts]))


def test_gates_and_their_inputs_alternate_as_numbers_do() -> None:
    """Rows that pad a feed-forward width to whole blocks are zeros."""
    weight = random_grouped(2 * 50, 64, 4, 5)
    interleaved = interleave_gate_up(weight)
    expected = interleave_gate_up(weight.dequantise())
    assert torch.equal(interleaved.dequantise(), expected)
    assert not expected[-6:].any()


def grouped_model(weights: ModelWeights, bits: int) -> ModelWeights:
    """The same sizes with grouped matrices."""

    def layer(given: LayerWeights, seed: int) -> LayerWeights:
        matrices = {
            name: random_grouped(*getattr(given, name).shape, bits, seed + i)
            for i, name in enumerate(_MATRICES)
        }
        return dataclasses.replace(given, **matrices)

    layers = [layer(each, 10 * i) for i, each in enumerate(weights.layers)]
    head = random_grouped(weights.num_logits, weights.width, 8, 99)
    return dataclasses.replace(weights, layers=layers, head=head)


def dequantised_model(weights: ModelWeights) -> ModelWeights:
    def layer(given: LayerWeights) -> LayerWeights:
        return dataclasses.replace(
            given, **{name: getattr(given, name).dequantise() for name in _MATRICES}
        )

    assert isinstance(weights.head, GroupedWeight)
    layers = [layer(each) for each in weights.layers]
    return dataclasses.replace(weights, layers=layers, head=weights.head.dequantise())


def logits_of(weights: ModelWeights, isa: str) -> Tensor:
    """Of a long pass, then a block, then one row; three threads for the last."""
    model, (k, v) = NativePass(weights, isa), empty_cache(weights)
    ids, found = torch.arange(309) * 7 % 61, []
    for span in (Span(1, 0, 300), Span(1, 300, 8), Span(1, 308, 1)):
        set_num_threads(3 if span.num_rows == 1 else 1)
        rows = ids[span.start : span.start + span.num_rows]
        logits = model.forward(k, v, rows, [span], logits=torch.float32).logits
        assert logits is not None
        found.append(logits)
    return torch.cat(found)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_target_has_the_bits_of_the_dequantised_one(isa: str, bits: int, is_tied: bool) -> None:
    sizes = {"ffn_width": 1184 if bits == 4 else 96, "is_tied": is_tied, "windows": (30, None)}
    weights = grouped_model(random_weights(biases=True, **sizes), bits)
    logits = logits_of(weights, isa)
    assert bool(logits.isfinite().all())
    assert torch.equal(logits, logits_of(dequantised_model(weights), isa))


def test_a_drafter_shares_a_grouped_head_or_takes_some_of_its_rows(isa: str) -> None:
    target = NativePass(grouped_model(random_weights(), 4), isa)
    ids, span = torch.arange(5), [Span(0, 0, 5)]
    rows = torch.tensor([3, 40, 7])

    def draft(head: object) -> Tensor:
        weights = dataclasses.replace(random_weights(is_tied=False), head=head)
        weights = dataclasses.replace(weights, feature=torch.eye(64), feature_norm=torch.ones(64))
        k, v = empty_cache(weights)
        logits = NativePass(weights, isa).forward(k, v, ids, span, logits=torch.float32).logits
        assert logits is not None
        return logits

    whole = draft(target.head)
    assert torch.equal(whole, draft(target.head.rows(torch.arange(61))))
    assert torch.equal(draft(target.head.packed_rows(rows)), whole[:, rows])


def test_a_shared_grouped_head_serves_as_a_tied_embedding(isa: str) -> None:
    target = NativePass(grouped_model(random_weights(), 4), isa)
    shared = dataclasses.replace(random_weights(), head=target.head, embedding=None)
    own = dataclasses.replace(random_weights(), head=target.head.rows(torch.arange(61)))
    assert torch.equal(logits_of(shared, isa), logits_of(own, isa))


def test_memory_is_about_a_third(isa: str) -> None:
    weights = grouped_model(random_weights(vocab_size=2000), 4)
    whole = NativePass(dequantised_model(weights), isa)
    grouped = NativePass(weights, isa)
    assert grouped.weight_formats == ("group4", "group8")
    assert whole.weight_formats == ("bfloat16",)
    # The tied embedding, which is a table of its own beside a grouped head, is in both sums.
    table = 2 * 2000 * 64
    assert 0.3 < (grouped.num_bytes() - table) / whole.num_bytes() < 0.7
