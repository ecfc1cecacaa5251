"""The packed linear layer: right for every shape, and each row the same bits in any company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels.native import NativeLinear, set_num_threads
from blockdraft.kernels.native.linear import quantise


def random_layer(n: int, k: int, rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n, k, generator=generator).bfloat16()
    bias = torch.randn(n, generator=generator)
    return weight, bias, torch.randn(rows, k, generator=generator).bfloat16()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 130),
    k=st.integers(1, 200),
    rows=st.integers(0, 300),
    seed=st.integers(0, 2**31),
    has_bias=st.booleans(),
    dtype=st.sampled_from((torch.bfloat16, torch.int8)),
)
def test_products_match_float64(
    isa: str, n: int, k: int, rows: int, seed: int, has_bias: bool, dtype: torch.dtype
) -> None:
    weight, bias, x = random_layer(n, k, rows, seed)
    layer = NativeLinear(weight, bias if has_bias else None, isa, dtype)
    if dtype == torch.int8:
        integers, scales = quantise(weight)
        weight = integers.double() * scales.double()[:, None]
    y = layer(x, torch.float32).double()
    offset = bias.double() if has_bias else torch.zeros(n, dtype=torch.float64)
    expected = x.double() @ weight.double().T + offset
    # Float32 sums: far below one rounding of a bfloat16 (2**-9), in units of the terms' size.
    size = x.double().abs() @ weight.double().abs().T + offset.abs()
    assert y.shape == expected.shape
    assert bool(((y - expected).abs() <= 2.0**-20 * size).all())


def test_bfloat16_output_is_the_rounded_sum(isa: str) -> None:
    weight, bias, x = random_layer(70, 96, 9, 1)
    layer = NativeLinear(weight, bias, isa)
    assert torch.equal(layer(x), layer(x, torch.float32).bfloat16())


def test_leading_dimensions_are_kept(isa: str) -> None:
    weight, _, x = random_layer(40, 64, 12, 2)
    layer = NativeLinear(weight, None, isa)
    assert torch.equal(layer(x.view(3, 4, 64)).view(12, 40), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("n", "k"), [(96, 576), (50, 70), (33, 1536)])
def test_a_row_has_the_same_bits_at_any_row_count(
    isa: str, n: int, k: int, dtype: torch.dtype
) -> None:
    weight, bias, x = random_layer(n, k, 300, 3)
    layer = NativeLinear(weight, bias, isa, dtype)
    whole = layer(x, torch.float32)
    for count in (1, 4, 7, 8, 16, 17, 33, 64):
        parts = [layer(part, torch.float32) for part in x.split(count)]
        assert torch.equal(torch.cat(parts), whole), f"{count} rows at a time"


def test_a_row_does_not_see_its_neighbours(isa: str) -> None:
    weight, bias, x = random_layer(64, 100, 20, 4)
    layer = NativeLinear(weight, bias, isa)
    before = layer(x, torch.float32)
    changed = x.clone()
    changed[::2] = torch.tensor([float("inf"), float("nan"), -3e38, 1.0, 0.0]).repeat(20).bfloat16()
    after = layer(changed, torch.float32)
    assert torch.equal(after[1::2], before[1::2])
    assert not torch.isfinite(after[::2]).any()


def test_the_number_of_threads_changes_nothing(isa: str) -> None:
    weight, bias, x = random_layer(300, 200, 21, 5)
    layer = NativeLinear(weight, bias, isa)
    results = []
    for num_threads in (1, 2, 5):
        set_num_threads(num_threads)
        results.append(layer(x, torch.float32))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_quantised_weights_are_the_nearest_integers() -> None:
    weight, _, _ = random_layer(20, 50, 1, 8)
    weight = weight.float()
    weight[3] = 0.0
    integers, scales = quantise(weight)
    assert integers.abs().amax(dim=1).tolist() == [127] * 3 + [0] + [127] * 16
    error = (weight - integers * scales[:, None]).abs()
    assert bool((error <= 0.5001 * scales[:, None]).all())


def test_memory_is_told(isa: str) -> None:
    weight, bias, _ = random_layer(64, 64, 1, 6)
    assert NativeLinear(weight, None, isa).num_bytes() == 64 * 64 * 2
    assert NativeLinear(weight, bias, isa).num_bytes() == 64 * 64 * 2 + 64 * 4
    assert NativeLinear(weight, None, isa, torch.int8).num_bytes() == 64 * 64 + 64 * 4


def test_wrong_inputs_are_named(isa: str) -> None:
    weight, _, x = random_layer(8, 16, 2, 7)
    layer = NativeLinear(weight, None, isa)
    with pytest.raises(ConfigError, match=r"float32.*bfloat16 \[\.\.\., 16\]"):
        layer(x.float())
    with pytest.raises(ConfigError, match="16"):
        layer(x[:, :8].contiguous())
    with pytest.raises(ConfigError, match="float16"):
        layer(x, torch.float16)
    with pytest.raises(ConfigError, match=r"bias.*\[8\]"):
        NativeLinear(weight, torch.zeros(9), isa)
    with pytest.raises(ConfigError, match=r"\[0, 4\]"):
        NativeLinear(torch.zeros(0, 4), None, isa)
    with pytest.raises(ConfigError, match="bfloat16 or int8"):
        NativeLinear(weight, None, isa, torch.float16)
