"""Hand-derived backward passes against autograd of the references."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from blockdraft.layers.conv import conv_kernels, convolve
from blockdraft.training.mixing import mix_rows, rms_norm


def _grads(out: torch.Tensor, up: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad((out * up).sum(), inputs))


@pytest.mark.parametrize(("t", "taps"), [(8, 2), (1, 2), (2, 3), (5, 3), (4, 1)])
def test_mixing_equals_the_layer(t: int, taps: int) -> None:
    torch.manual_seed(0)
    n, m, group = 5, 12, 4
    rows = torch.randn(n, t, m, dtype=torch.float64, requires_grad=True)
    flat = torch.randn(n, t, 2 * taps * (m // group), dtype=torch.float64, requires_grad=True)
    base = torch.randn(2, taps, m, dtype=torch.float64, requires_grad=True)
    up = torch.randn(n, t, m, dtype=torch.float64)
    correction = flat.view(n, t, 2, taps, m // group)
    for side in (0, 1):
        expected = convolve(rows, conv_kernels(flat, base, group)[side])
        out = mix_rows(rows, correction[:, :, side], base[side])
        torch.testing.assert_close(out, expected)
        for a, b in zip(
            _grads(out, up, rows, flat, base), _grads(expected, up, rows, flat, base), strict=True
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(7, 12), (3, 4, 2, 8)])
def test_norm_equals_pytorch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    rows = torch.randn(shape, requires_grad=True)
    weight = torch.randn(shape[-1], requires_grad=True)
    up = torch.randn(shape)
    expected = F.rms_norm(rows, weight.shape, weight, 1e-5)
    out = rms_norm(rows, weight, 1e-5)
    torch.testing.assert_close(out, expected)
    for a, b in zip(_grads(out, up, rows, weight), _grads(expected, up, rows, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
