"""Norms and block convolutions as single differentiable operations with few passes over memory.

On a CPU these, not the products, are what a training step waits for: PyTorch's own backward
passes of them take four times as long. The references are `layers/conv.py` and `F.rms_norm`; tests
hold values and gradients equal.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def mix_rows(
    rows: Float[Tensor, "n t m"],
    correction: Float[Tensor, "n t r c"],
    base: Float[Tensor, "r m"],
) -> Float[Tensor, "n t m"]:
    """out[k] = sum over taps j <= k of (base[j] + spread(correction[k, j])) * rows[k - j].

    Args:
        correction: of each row, tap and group of m / c neighbouring channels.
        base: of each tap and channel.
    """
    out: Tensor = _MixRows.apply(rows, correction, base)  # type: ignore[no-untyped-call]
    return out


def rms_norm(
    rows: Float[Tensor, "... m"], weight: Float[Tensor, "m"], eps: float
) -> Float[Tensor, "... m"]:
    """Each row divided by its root mean square, then scaled; statistics in float32."""
    out: Tensor = _RMSNorm.apply(rows, weight, eps)  # type: ignore[no-untyped-call]
    return out


class _MixRows(torch.autograd.Function):
    """Spreading groups to channels, and summing channels to groups, are products with 0 and 1."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, correction: Tensor, base: Tensor) -> Tensor:
        ctx.save_for_backward(rows, correction, base)
        out = rows * _kernel(correction, base, 0)
        for j in range(1, min(len(base), rows.shape[1])):
            out[:, j:].addcmul_(rows[:, :-j], _kernel(correction, base, j)[:, j:])
        return out

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, correction, base = ctx.saved_tensors
        [grad] = outer
        num_rows, width = rows.shape[1:]
        gather = _groups(correction.shape[-1], width, rows)
        ones = rows.new_ones(1, grad[..., 0].numel())
        d_rows = grad * _kernel(correction, base, 0)
        d_correction, d_base = torch.zeros_like(correction), torch.zeros_like(base)
        for j in range(min(len(base), num_rows)):
            product = grad * rows if j == 0 else torch.zeros_like(grad)
            if j:
                torch.mul(grad[:, j:], rows[:, :-j], out=product[:, j:])
                d_rows[:, :-j].addcmul_(grad[:, j:], _kernel(correction, base, j)[:, j:])
            flat = product.flatten(0, 1)
            d_correction[:, :, j] = (flat @ gather.T).view(d_correction[:, :, j].shape)
            d_base[j] = (ones @ flat)[0]
        return d_rows, d_correction, d_base


def _kernel(correction: Tensor, base: Tensor, tap: int) -> Tensor:
    """Weights of one tap [n, t, m]."""
    n, t, _, groups = correction.shape
    spread = _groups(groups, base.shape[1], correction)
    return torch.addmm(base[tap], correction[:, :, tap].reshape(n * t, groups), spread).view(
        n, t, -1
    )


def _groups(num_groups: int, width: int, like: Tensor) -> Float[Tensor, "c m"]:
    """1 where a channel belongs to a group."""
    eye = torch.eye(num_groups, dtype=like.dtype, device=like.device)
    return eye.repeat_interleave(width // num_groups, 1)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        width, dtype = rows.shape[-1], torch.promote_types(rows.dtype, torch.float32)
        size = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=dtype)
        scale = torch.rsqrt(size.square_().div_(width).add_(eps)).to(rows.dtype)
        ctx.save_for_backward(rows, weight, scale)
        return (rows * scale).mul_(weight.to(rows.dtype))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight, scale = ctx.saved_tensors
        [grad] = outer
        normed = rows * scale
        product = (grad * normed).flatten(0, -2)
        d_weight = (product.new_ones(1, len(product)) @ product)[0].to(weight.dtype)
        inner = (product @ weight.to(rows.dtype)[:, None]).view(scale.shape) / rows.shape[-1]
        d_rows = (grad * weight.to(rows.dtype)).sub_(normed.mul_(inner)).mul_(scale)
        return d_rows, d_weight, None
