"""Grouped dynamic causal convolution over the rows of a block (DFlash 2).

Around a sub-layer (attention or MLP) every block row is mixed with the rows just before it, with
kernels that depend on the row: a learned base per channel plus a correction per group of channels,
projected from the sub-layer's input. One projection serves both sides of the sub-layer: side 0
mixes its input, side 1 its output. Taps never reach beyond the block's first row.

Source: DFlash 2 (inco.ai/blog/dflash2, August 2026). Plain differentiable operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from blockdraft.kernels.base import Linear

#: Kernels of one side: for each tap its weights, by row and channel.
Taps = Sequence[Float[Tensor, "b t m"]]


def conv_kernels(
    correction: Float[Tensor, "b t p"], base: Float[Tensor, "2 r m"], group_size: int
) -> tuple[Taps, Taps]:
    """Both sides' kernels of every row: the base plus each group's correction.

    Args:
        correction: projection of the sub-layer's input rows, p = 2 * r * (m / group_size) wide,
            ordered by side, tap, group.
        base: learned kernels by side, tap, channel; tap j weighs the row j places before.
        group_size: neighbouring channels that share a correction; divides m.
    """
    sides, num_taps, width = base.shape
    groups = width // group_size
    b, t, _ = correction.shape
    # Spread first, then add: a broadcast add over short groups is ten times slower in bfloat16.
    grouped = correction.view(b, t, sides * num_taps, groups, 1)
    spread = grouped.expand(-1, -1, -1, -1, group_size).reshape(b, t, sides * num_taps, width)
    taps = (spread + base.flatten(0, 1)).unbind(2)
    return taps[:num_taps], taps[num_taps:]


def convolve(rows: Float[Tensor, "b t m"], taps: Taps) -> Float[Tensor, "b t m"]:
    """out[k] = sum over taps j <= k of taps[j][k] * rows[k - j]; zero before the block."""
    out = rows * taps[0]
    for j in range(1, min(len(taps), rows.shape[1])):
        out[:, j:].addcmul_(taps[j][:, j:], rows[:, :-j])
    return out


class BlockConv:
    """The two convolutions around one sub-layer, with the projection that serves both."""

    def __init__(self, projection: Linear, base: Float[Tensor, "2 r m"], group_size: int) -> None:
        self.projection, self.base, self.group_size = projection, base, group_size

    def enter(self, rows: Float[Tensor, "b t m"]) -> tuple[Float[Tensor, "b t m"], Taps]:
        """Mix a sub-layer's input; also returns the kernels for its output (see `convolve`)."""
        b, t, _ = rows.shape
        correction = self.projection(rows.flatten(0, 1)).view(b, t, -1)
        before, after = conv_kernels(correction, self.base, self.group_size)
        return convolve(rows, before), after
