"""Weights as a GGUF file holds them: small integers, with a scale and an offset a group.

What such a weight stands for is bfloat16(scale * integer + offset), which is exactly the number
that dequantising the file gives (GGUF's Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: integers times a half, in
float32). Kernels that expand it when it is used therefore compute the same bits as with weights
expanded once, and read a third of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import BFloat16, Float16, Int64, UInt8
from torch import Tensor

#: Consecutive inputs of one output that share a scale and an offset.
GROUP = 32


@dataclass(frozen=True, eq=False)
class GroupedWeight:
    """A matrix of `bits`-wide integers; scales and offsets of every 32 inputs of an output.

    Attributes:
        integers: 0 to 2**bits - 1.
        bits: 4 or 8, the width they can be packed in.
    """

    integers: UInt8[Tensor, "n k"]
    scales: Float16[Tensor, "n groups"]
    offsets: Float16[Tensor, "n groups"]
    bits: int

    @property
    def shape(self) -> torch.Size:
        return self.integers.shape

    @property
    def is_finite(self) -> bool:
        """Whether every scale and offset is a number: an offset may have left the halves' range."""
        return bool(torch.isfinite(self.scales).all() and torch.isfinite(self.offsets).all())

    def numel(self) -> int:
        """Weights, not bytes."""
        return self.integers.numel()

    def dequantise(self) -> BFloat16[Tensor, "n k"]:
        """The weights this stands for."""
        groups = self.integers.view(len(self.integers), -1, GROUP).float()
        # The product is exact in float32 (at most 11 + 8 bits), so the sum rounds as if fused.
        values = groups * self.scales.float()[..., None] + self.offsets.float()[..., None]
        return values.to(torch.bfloat16).view(self.shape)

    def rows(self, index: Int64[Tensor, "m"]) -> GroupedWeight:
        """Some rows, in the order of `index`; a row of -1 is zeros."""
        is_real = index >= 0
        integers, scales, offsets = (
            part[index.clamp(min=0)] * is_real[:, None].to(part.dtype)
            for part in (self.integers, self.scales, self.offsets)
        )
        return GroupedWeight(integers, scales, offsets, self.bits)


def stack(parts: Sequence[GroupedWeight]) -> GroupedWeight:
    """The rows of some matrices one after the other, packed as wide as the widest needs."""
    return GroupedWeight(
        torch.cat([part.integers for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat([part.offsets for part in parts]),
        max(part.bits for part in parts),
    )
