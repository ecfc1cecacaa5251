"""Block convolution: hand numbers, edges of the block, neighbours, identity."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.kernels.torch_reference import TorchLinear
from blockdraft.layers.conv import BlockConv, conv_kernels, convolve


def naive(rows: Tensor, correction: Tensor, base: Tensor, side: int, group: int) -> Tensor:
    """One block [t, m], element by element."""
    taps, width = base.shape[1:]
    delta = correction.view(len(rows), 2, taps, width // group)
    out = torch.zeros_like(rows)
    for k in range(len(rows)):
        for m in range(width):
            for tap in range(taps):
                if tap <= k:
                    weight = base[side, tap, m] + delta[k, side, tap, m // group]
                    out[k, m] += weight * rows[k - tap, m]
    return out


def test_hand_computed_two_by_two_bc43() -> None:
    """BC-43: two rows, two channels, one group each; row 0 reads zero for its second tap."""
    rows = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    base = torch.tensor([[[1.0, 10.0], [0.5, 0.25]], [[0.0, 1.0], [2.0, 3.0]]])
    # Row by row: side 0 tap 0 (two groups), side 0 tap 1, side 1 tap 0, side 1 tap 1.
    correction = torch.tensor(
        [[[0.0, 1.0, 9.0, 9.0, 1.0, 0.0, 9.0, 9.0], [1.0, 0.0, 0.5, 0.75, 0.0, 1.0, -1.0, 0.0]]]
    )
    before, after = conv_kernels(correction, base, group_size=1)
    # Row 0: [(1+0)*1, (10+1)*2]. Row 1: [(1+1)*3 + (0.5+0.5)*1, (10+0)*4 + (0.25+0.75)*2].
    assert convolve(rows, before).tolist() == [[[1.0, 22.0], [7.0, 42.0]]]
    # Row 0: [(0+1)*1, (1+0)*2]. Row 1: [(0+0)*3 + (2-1)*1, (1+1)*4 + (3+0)*2].
    assert convolve(rows, after).tolist() == [[[1.0, 2.0], [1.0, 14.0]]]


@settings(max_examples=25, deadline=None)
@given(
    b=st.integers(1, 3),
    t=st.integers(1, 5),
    taps=st.integers(1, 4),
    group=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
)
def test_equals_the_naive_loop(b: int, t: int, taps: int, group: int, seed: int) -> None:
    width, gen = 8, torch.Generator().manual_seed(seed)
    rows = torch.randn(b, t, width, generator=gen)
    base = torch.randn(2, taps, width, generator=gen)
    correction = torch.randn(b, t, 2 * taps * width // group, generator=gen)
    for side, kernels in enumerate(conv_kernels(correction, base, group)):
        out = convolve(rows, kernels)
        for i in range(b):
            expected = naive(rows[i], correction[i], base, side, group)
            torch.testing.assert_close(out[i], expected, rtol=1e-5, atol=1e-6)


def test_blocks_do_not_read_each_other_bc43() -> None:
    """BC-43: with a huge last row in the block before, a block's rows do not move by one bit."""
    gen = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 4, 8, generator=gen)
    taps = torch.randn(2, 2, 4, 8, generator=gen).unbind(0)
    alone = convolve(rows[1:], [tap[1:] for tap in taps])
    rows[0, -1] = 1e30
    assert torch.equal(convolve(rows, taps)[1:], alone)


def test_untrained_is_the_identity() -> None:
    base = torch.zeros(2, 2, 8)
    base[:, 0] = 1
    conv = BlockConv(TorchLinear(torch.zeros(2 * 2 * 4, 8), None), base, group_size=2)
    rows = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    mixed, after = conv.enter(rows)
    assert torch.equal(mixed, rows)
    assert torch.equal(convolve(rows, after), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_reach_every_part(dtype: torch.dtype) -> None:
    """Training uses the same operations."""
    base = torch.randn(2, 2, 8, dtype=dtype, requires_grad=True)
    correction = torch.randn(1, 3, 2 * 2 * 4, dtype=dtype, requires_grad=True)
    rows = torch.randn(1, 3, 8, dtype=dtype, requires_grad=True)
    before, after = conv_kernels(correction, base, 2)
    convolve(convolve(rows, before), after).sum().backward()
    assert all(t.grad is not None and bool(t.grad.any()) for t in (base, correction, rows))
