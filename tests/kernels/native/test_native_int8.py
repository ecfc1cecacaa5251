"""Whole passes with int8 weights: the quantised model, exactly as good as the bfloat16 one."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels.native import (
    ConvWeights,
    LayerWeights,
    ModelWeights,
    NativePass,
    Span,
    set_num_threads,
)
from blockdraft.kernels.native.linear import quantise
from tests.kernels.native.native_reference import (
    Reference,
    empty_cache,
    random_weights,
    relative_error,
)

_MATRICES = ("qkv", "output", "gate_up", "down")


def dequantised(weight: Tensor) -> Tensor:
    integers, scales = quantise(weight)
    return integers.double() * scales.double()[:, None]


def quantised_layer(layer: LayerWeights) -> LayerWeights:
    matrices = {name: dequantised(getattr(layer, name)) for name in _MATRICES}
    convs = {
        name: ConvWeights(base=conv.base, projection=dequantised(conv.projection))
        for name in ("attention_conv", "mlp_conv")
        if (conv := getattr(layer, name)) is not None
    }
    return dataclasses.replace(layer, **matrices, **convs)


def quantised_model(weights: ModelWeights) -> ModelWeights:
    """What the int8 kernels should compute, in float64."""
    assert isinstance(weights.head, Tensor)
    feature = None if weights.feature is None else dequantised(weights.feature)
    layers = [quantised_layer(layer) for layer in weights.layers]
    head = dequantised(weights.head)
    return dataclasses.replace(weights, layers=layers, head=head, feature=feature)


@pytest.mark.parametrize("is_tied", [True, False])
def test_target_matches_the_quantised_model(isa: str, is_tied: bool) -> None:
    weights = random_weights(biases=True, ffn_width=50, is_tied=is_tied, windows=(30, None))
    model, reference = NativePass(weights, isa, torch.int8), Reference(quantised_model(weights))
    k, v = empty_cache(weights)
    ids = torch.arange(170) * 7 % 61
    for span in (Span(1, 0, 160), Span(1, 160, 8), Span(1, 168, 1)):
        rows = ids[span.start : span.start + span.num_rows]
        logits = model.forward(k, v, rows, [span], logits=torch.float32).logits
        assert logits is not None
        assert relative_error(logits, reference.forward(rows, span).logits) < 0.012


def test_drafter_matches_the_quantised_model(isa: str) -> None:
    weights = random_weights(num_taps=3, conv_group=16, causal=(False,), qk_norm=True)
    model, reference = NativePass(weights, isa, torch.int8), Reference(quantised_model(weights))
    k, v = empty_cache(weights)
    features = torch.randn(33, 3 * 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    model.append_context(k, v, features, [Span(0, 0, 33)])
    reference.append_context(features, Span(0, 0, 33))
    ids, span = torch.arange(8), Span(0, 33, 8)
    logits = model.forward(k, v, ids, [span], logits=torch.float32).logits
    assert logits is not None
    assert relative_error(logits, reference.forward(ids, span).logits) < 0.03


def test_eight_rows_are_eight_single_rows_bit_for_bit(isa: str) -> None:
    weights = random_weights(ffn_width=50)
    model = NativePass(weights, isa, torch.int8)
    ids = torch.arange(60) * 11 % 61
    results = []
    for width in (1, 8, 60):
        k, v = empty_cache(weights)
        set_num_threads(1 + width % 3)
        parts = [
            model.forward(k, v, part, [Span(0, i * width, len(part))], logits=torch.float32).logits
            for i, part in enumerate(ids.split(width))
        ]
        results.append(torch.cat([part for part in parts if part is not None]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_greatest_logits_are_those_of_all_logits(isa: str) -> None:
    weights = random_weights(vocab_size=300)
    model = NativePass(weights, isa, torch.int8)
    k, v = empty_cache(weights)
    ids, span = torch.arange(20), [Span(0, 0, 20)]
    top = model.forward(k, v, ids, span, top_k=16)
    logits = model.forward(k, v, ids, span, logits=torch.float32).logits
    assert logits is not None
    assert top.top_ids is not None
    expected = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top.top_ids, expected.indices[:, :16])
    assert torch.equal(top.top_values, expected.values[:, :16])


def test_a_drafter_in_bfloat16_shares_a_quantised_head(isa: str) -> None:
    target = NativePass(random_weights(), isa, torch.int8)
    weights = dataclasses.replace(random_weights(), head=target.head)
    drafter = NativePass(weights, isa)
    k, v = empty_cache(weights)
    ids = torch.arange(5)
    logits = drafter.forward(k, v, ids, [Span(0, 0, 5)], logits=torch.float32).logits
    full = random_weights()
    assert isinstance(full.head, Tensor)
    reference = Reference(dataclasses.replace(full, head=dequantised(full.head)))
    assert logits is not None
    assert relative_error(logits, reference.forward(ids, Span(0, 0, 5)).logits) < 0.012


def test_memory_is_about_half(isa: str) -> None:
    weights = random_weights(vocab_size=2000)
    ratio = NativePass(weights, isa, torch.int8).num_bytes() / NativePass(weights, isa).num_bytes()
    assert 0.5 < ratio < 0.6


def test_other_weight_types_are_refused(isa: str) -> None:
    with pytest.raises(ConfigError, match=r"weight dtype is torch\.float16"):
        NativePass(random_weights(), isa, torch.float16)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_not_rounded_away(wrong: float) -> None:
    weight = torch.ones(5, 40)
    weight[3, 7] = wrong
    with pytest.raises(ConfigError, match=r"output 3 of a weight \[5, 40\] is not finite"):
        quantise(weight)
