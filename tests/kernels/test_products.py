"""Packed products against the plain reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels import onednn
from blockdraft.kernels.choose import choose_kernels
from blockdraft.kernels.torch_reference import TorchKernels

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not onednn.is_available(), reason="PyTorch without oneDNN")


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_onednn
@pytest.mark.parametrize("rows", [1, 3, 8, 17])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_packed_products_equal_plain(
    rows: int, has_bias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    weight, up, bias = rand(40, 24) / 5, rand(40, 24, seed=1) / 5, rand(40) if has_bias else None
    x, residual = rand(rows, 24).to(dtype), rand(rows, 40).to(dtype)
    fast, slow = onednn.OneDnnKernels(dtype), TorchKernels(torch.float32, CPU)
    near = {"atol": tolerance, "rtol": tolerance}
    # The reference gets the rounded weights: only the arithmetic is compared.
    w, u = weight.to(dtype).float(), up.to(dtype).float()
    b = None if bias is None else bias.to(dtype).float()
    xf, rf = x.float(), residual.float()
    got, want = fast.linear(weight, bias), slow.linear(w, b)
    torch.testing.assert_close(got(x).float(), want(xf), **near)
    torch.testing.assert_close(got.add_to(residual, x).float(), want.add_to(rf, xf), **near)
    gated = fast.gated_pair(weight, up, bias, bias)(x).float()
    torch.testing.assert_close(gated, slow.gated_pair(w, u, b, b)(xf), **near)


@needs_onednn
def test_add_to_leaves_the_residual_alone() -> None:
    x, residual = rand(2, 24).bfloat16(), rand(2, 40).bfloat16()
    before = residual.clone()
    onednn.OneDnnKernels(torch.bfloat16).linear(rand(40, 24)).add_to(residual, x)
    assert torch.equal(residual, before)


def test_the_right_backend_is_chosen() -> None:
    assert choose_kernels(torch.float32, CPU).name == "torch"
    expected = "onednn" if onednn.is_available() else "torch"
    assert choose_kernels(torch.bfloat16, CPU).name == expected
    with pytest.raises(ConfigError, match="choose from"):
        choose_kernels(torch.float32, CPU, "magic")
