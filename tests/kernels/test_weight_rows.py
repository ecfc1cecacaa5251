"""Packed weights give back the rows they were made of."""

from __future__ import annotations

import pytest
import torch

from blockdraft.kernels import native, onednn
from blockdraft.kernels.base import Kernels
from blockdraft.kernels.native.linear import PackedLinear, quantise
from blockdraft.kernels.torch_reference import TorchKernels

#: Both halves of a block, its ends, the last and padded block.
IDS = torch.tensor([0, 3, 15, 16, 31, 32, 33, 69])


def backends() -> list[Kernels]:
    made: list[Kernels] = [TorchKernels(torch.float32, torch.device("cpu"))]
    if onednn.is_available():
        made += [onednn.OneDnnKernels(torch.bfloat16), onednn.OneDnnKernels(torch.float32)]
    return made


@pytest.mark.parametrize("kernels", backends(), ids=lambda k: f"{k.name}-{k.dtype}")
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_of_a_linear_layer(kernels: Kernels, has_bias: bool) -> None:
    weight, bias = torch.randn(70, 50).to(kernels.dtype), torch.randn(70).to(kernels.dtype)
    rows, some = kernels.linear(weight, bias if has_bias else None).rows(IDS)
    assert torch.equal(rows, weight[IDS])
    assert (some is not None) == has_bias
    if some is not None:
        assert torch.equal(some, bias[IDS])


needs_native = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")


@needs_native
def test_rows_of_packed_bfloat16() -> None:
    weight = torch.randn(70, 50).bfloat16()
    assert torch.equal(PackedLinear(weight).rows(IDS), weight[IDS])


@needs_native
def test_rows_of_packed_int8_are_the_numbers_it_stands_for() -> None:
    weight = torch.randn(70, 50)
    rounded, scales = quantise(weight)
    packed = PackedLinear(weight, dtype=torch.int8)
    assert torch.equal(packed.rows(IDS), (rounded * scales[:, None])[IDS])
