"""Grouped weights in the order that the kernels expand them in (csrc/expand_groups.h)."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional

from blockdraft.kernels.grouped_weight import GROUP, GroupedWeight

_BLOCK = 32
_HEADER_BYTES = 4 * _BLOCK


def pack_grouped(weight: GroupedWeight, out: UInt8[Tensor, "blocks steps bytes"]) -> None:
    """Write a weight in the order of csrc/expand_groups.h; outputs are padded by zeros."""
    n, k = weight.shape
    more = -n % _BLOCK
    blocks, steps = (n + more) // _BLOCK, k // GROUP
    out = out.view(blocks, steps, -1)
    halves = out[..., :_HEADER_BYTES].view(torch.float16).view(blocks, steps, 2, _BLOCK)
    for i, part in enumerate((weight.scales, weight.offsets)):
        padded = functional.pad(part, (0, 0, 0, more))
        halves[:, :, i].copy_(padded.view(blocks, _BLOCK, steps).transpose(1, 2))
    integers = functional.pad(weight.integers, (0, 0, 0, more))
    body = out[..., _HEADER_BYTES:]
    if weight.bits == 8:
        ordered = integers.view(blocks, 4, 8, steps, 16, 2).permute(0, 3, 4, 1, 2, 5)
        body.copy_(ordered.reshape(blocks, steps, -1))
        return
    # [block, step, four, 8 outputs, input of a pair, pair of a four, half of the outputs, low/high]
    ordered = integers.view(blocks, 2, 2, 8, steps, 8, 2, 2).permute(0, 4, 5, 3, 7, 6, 1, 2)
    low, high = ordered.unbind(-1)
    body.copy_((low | high << 4).reshape(blocks, steps, -1))


def packed_shape(weight: GroupedWeight) -> tuple[int, int, int]:
    """Blocks of 32 outputs, steps of 32 inputs, bytes of both together."""
    n, k = weight.shape
    return -(-n // _BLOCK), k // GROUP, _bytes_a_step(weight.bits)


def unpack_grouped(packed: UInt8[Tensor, "blocks steps bytes"], num_outputs: int) -> GroupedWeight:
    """The weight that was packed."""
    blocks, steps, num_bytes = packed.shape
    bits = 8 if num_bytes == _bytes_a_step(8) else 4
    halves = packed[..., :_HEADER_BYTES].contiguous().view(torch.float16)
    both = halves.view(blocks, steps, 2, _BLOCK).permute(2, 0, 3, 1).reshape(2, -1, steps)
    body = packed[..., _HEADER_BYTES:]
    if bits == 8:
        ordered = body.reshape(blocks, steps, 16, 4, 8, 2).permute(0, 3, 4, 1, 2, 5)
    else:
        bytes_ = body.reshape(blocks, steps, 8, 8, 2, 2, 2)
        nibbles = torch.stack([bytes_ & 15, bytes_ >> 4], dim=-1)
        ordered = nibbles.permute(0, 6, 7, 3, 1, 2, 5, 4)
    integers = ordered.reshape(-1, steps * GROUP)
    scales, offsets = both[:, :num_outputs].contiguous()
    return GroupedWeight(integers[:num_outputs].contiguous(), scales, offsets, bits)


def _bytes_a_step(bits: int) -> int:
    return _HEADER_BYTES + bits * GROUP * _BLOCK // 8
