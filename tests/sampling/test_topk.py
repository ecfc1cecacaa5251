"""Exact top-k and argmax against a stable sort, with ties everywhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.sampling import choose, fast_topk

INF = float("inf")


def by_sort(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]


def assert_same(x: Tensor, k: int) -> None:
    values, ids = fast_topk(x, k)
    expected_values, expected_ids = by_sort(x, k)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(values, expected_values)
    assert values.dtype == x.dtype


@pytest.mark.parametrize("v", [1, 7, 63, 64, 129, 1000, 2048, 5003])
@pytest.mark.parametrize("k", [1, 2, 16, 40, 300])
@pytest.mark.parametrize("levels", [1, 3, 50, 10**6])
def test_equal_to_a_stable_sort(v: int, k: int, levels: int) -> None:
    """From all equal to nearly all different; both signs; both group sizes and none."""
    generator = torch.Generator().manual_seed(v * 1000 + k)
    x = torch.randint(-levels, levels + 1, (3, v), generator=generator).float() / 7.0
    assert_same(x, min(k, v))
    assert torch.equal(choose(x), by_sort(x, 1)[1][:, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert_same(x, 16)
    assert torch.equal(choose(x), by_sort(x, 1)[1][:, 0])


def test_float64_values_closer_than_float32_are_told_apart() -> None:
    x = torch.tensor([[1.0, 1.0 + 1e-12, 1.0 - 1e-12]], dtype=torch.float64)
    assert fast_topk(x, 3)[1].tolist() == [[1, 0, 2]]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_floats(data: st.DataObject) -> None:
    """Infinities, signed zeros, denormals, the extremes: still the order of a stable sort."""
    special = [0.0, -0.0, INF, -INF, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0]
    number = st.sampled_from(special) | st.floats(width=32, allow_nan=False)
    row = data.draw(st.lists(number, min_size=1, max_size=300))
    k = data.draw(st.integers(1, len(row)))
    assert_same(torch.tensor([row, row[::-1]], dtype=torch.float32), k)


def test_a_row_of_minus_infinity_gives_the_first_ids() -> None:
    x = torch.full((2, 500), -INF)
    assert fast_topk(x, 4)[1].tolist() == [[0, 1, 2, 3]] * 2
    assert choose(x).tolist() == [0, 0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_comes_first(sign: float) -> None:
    """BC-24: a NaN can be seen in the first value; it does not vanish among the candidates."""
    x = torch.randn(2, 5000)
    x[1, 4321] = torch.copysign(torch.tensor(torch.nan), torch.tensor(sign))
    values, ids = fast_topk(x, 16)
    assert not values[0].isnan().any()
    assert values[1, 0].isnan()
    assert int(ids[1, 0]) == int(choose(x)[1]) == 4321


def test_choose_keeps_leading_shapes() -> None:
    x = torch.randn(2, 3, 700)
    assert torch.equal(choose(x), x.argmax(-1))
    assert choose(x[:, :0]).shape == (2, 0)


def test_choose_reads_strided_rows() -> None:
    x = torch.randn(5, 3000)[:, ::2]
    assert torch.equal(choose(x), x.argmax(-1))
    assert torch.equal(fast_topk(x, 9)[1], by_sort(x, 9)[1])


@pytest.mark.parametrize("k", [0, 11])
def test_an_impossible_k_is_an_error(k: int) -> None:
    with pytest.raises(ValueError, match="1 to the row length, 10"):
        fast_topk(torch.randn(2, 10), k)
