"""Grouped dynamic causal convolution over the rows of a block (DFlash 2).

Around a sub-layer (attention or MLP) every block row is mixed with the rows just before it, with
kernels that depend on the row: a learned base per channel plus a correction per group of channels,
projected from the sub-layer's input. One projection serves both sides of the sub-layer: side 0
mixes its input, side 1 its output. Taps never reach beyond the block's first row.

Source: DFlash 2 (inco.ai/blog/dflash2, August 2026). Plain differentiable operations.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from blockdraft.kernels.base import Linear


def conv_kernels(
    correction: Float[Tensor, "b t p"], base: Float[Tensor, "2 r m"], group_size: int
) -> Float[Tensor, "b t 2 r m"]:
    """Both sides' kernels of every row: the base plus each group's correction.

    Args:
        correction: projection of the sub-layer's input rows, p = 2 * r * (m / group_size) wide,
            ordered by side, tap, group.
        base: learned kernels by side, tap, channel; tap j weighs the row j places before.
        group_size: neighbouring channels that share a correction; divides m.
    """
    sides, taps, width = base.shape
    groups = width // group_size
    b, t, _ = correction.shape
    grouped = correction.view(b, t, sides, taps, groups, 1)
    return (base.view(sides, taps, groups, group_size) + grouped).view(b, t, sides, taps, width)


def convolve(
    rows: Float[Tensor, "b t m"], kernels: Float[Tensor, "b t r m"]
) -> Float[Tensor, "b t m"]:
    """out[k] = sum over taps j <= k of kernels[k, j] * rows[k - j]; zero before the block."""
    out = rows * kernels[:, :, 0]
    for tap in range(1, min(kernels.shape[2], rows.shape[1])):
        out[:, tap:].addcmul_(kernels[:, tap:, tap], rows[:, :-tap])
    return out


class BlockConv:
    """The two convolutions around one sub-layer, with the projection that serves both."""

    def __init__(self, projection: Linear, base: Float[Tensor, "2 r m"], group_size: int) -> None:
        self.projection, self.base, self.group_size = projection, base, group_size

    def enter(
        self, rows: Float[Tensor, "b t m"]
    ) -> tuple[Float[Tensor, "b t m"], Float[Tensor, "b t r m"]]:
        """Mix a sub-layer's input; also returns the kernels for its output."""
        b, t, width = rows.shape
        correction = self.projection(rows.reshape(b * t, width)).view(b, t, -1)
        kernels = conv_kernels(correction, self.base, self.group_size)
        return convolve(rows, kernels[:, :, 0]), kernels[:, :, 1]

    def leave(
        self, rows: Float[Tensor, "b t m"], kernels: Float[Tensor, "b t r m"]
    ) -> Float[Tensor, "b t m"]:
        """Mix a sub-layer's output, before it is added to the residual."""
        return convolve(rows, kernels)
