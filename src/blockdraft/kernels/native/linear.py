"""Linear layers on bfloat16 rows, their weights packed once for any number of them."""

from __future__ import annotations

import ctypes
from math import prod
from typing import overload

import torch
from jaxtyping import BFloat16, Float, Float32, Int8, Int64
from torch import Tensor
from torch.nn import functional

from blockdraft.errors import ConfigError
from blockdraft.kernels.grouped_weight import GroupedWeight
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.grouped import (
    pack_grouped,
    packed_shape,
    unpack_grouped,
)
from blockdraft.kernels.native.library import check_status, choose_isa, load
from blockdraft.kernels.native.memory import WeightArena, aligned

BLOCK = 32
LANES = 16


#: A matrix to pack: numbers, or integers with scales as a file holds them.
Weight = Tensor | GroupedWeight


def packed_bytes(weight: Weight, dtype: torch.dtype) -> int:
    """Arena bytes of a weight once it is packed."""
    if isinstance(weight, GroupedWeight):
        return aligned(prod(packed_shape(weight)))
    return aligned(dtype.itemsize * _round_up(weight.shape[0]) * _round_up(weight.shape[1]))


class PackedLinear:
    """y = W x + bias, ready for the C side. Several models may share one.

    A bfloat16 weight lies as `[outputs / 32][inputs / 2][2][16][2]`: one 64-byte load holds two
    consecutive inputs of 16 outputs, which is what one vdpbf16ps, and a row of one AMX tile,
    consumes. Both dimensions are padded to a multiple of 32 by zeros. An int8 weight is symmetric
    with one scale for each output; inputs stay bfloat16, and a block of weights is expanded to
    bfloat16, which holds 8 bits exactly, when it is used. So is a grouped weight, whose products
    have the bits of those with `weight.dequantise()`.
    """

    def __init__(
        self,
        weight: Weight,
        bias: Float[Tensor, "n"] | None = None,
        arena: WeightArena | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Copies `weight` (numbers are rounded to `dtype`) into `arena`, or memory of its own.

        Raises: ConfigError if the weight is not a matrix, the bias does not fit it, or `dtype` is
            neither bfloat16 nor int8.
        """
        if len(weight.shape) != 2 or 0 in weight.shape:
            raise ConfigError(f"weight has shape {list(weight.shape)}; give [outputs, inputs]")
        check_weight_dtype(dtype)
        self.num_outputs, self.num_inputs = weight.shape
        if bias is not None and bias.shape != (self.num_outputs,):
            raise ConfigError(f"bias has shape {list(bias.shape)}; give [{self.num_outputs}]")
        arena = arena or WeightArena(packed_bytes(weight, dtype))
        self.bias = None if bias is None else _padded_vector(bias)
        self.scales: Tensor | None = None
        self.packed, kind = self._pack(weight, arena, dtype)
        self.struct = structs.LinearStruct(
            packed=self.packed.data_ptr(),
            scales=None if self.scales is None else self.scales.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            kind=kind,
            n=self.num_outputs,
            k=self.num_inputs,
            k_padded=_round_up(self.num_inputs),
            num_blocks=_round_up(self.num_outputs) // BLOCK,
        )

    def _pack(self, weight: Weight, arena: WeightArena, dtype: torch.dtype) -> tuple[Tensor, int]:
        if isinstance(weight, GroupedWeight):
            packed = arena.take(packed_shape(weight), torch.uint8)
            pack_grouped(weight, packed)
            is_group4 = weight.bits == 4
            return packed, structs.WEIGHTS_GROUP4 if is_group4 else structs.WEIGHTS_GROUP8
        n, k = _round_up(self.num_outputs), _round_up(self.num_inputs)
        packed = arena.take((n // BLOCK, k // 2, 2, LANES, 2), dtype)
        if dtype == torch.int8:
            rounded, scales = quantise(weight)
            self.scales = _padded_vector(scales)
            packed.view(-1, k // 2, 4, 2, 4, 2).copy_(_quantised_blocks(rounded))
            return packed, structs.WEIGHTS_INT8
        packed.view(torch.int32).squeeze(-1).copy_(_blocks(weight))
        return packed, structs.WEIGHTS_BF16

    @property
    def is_grouped(self) -> bool:
        """Whether the weight lies in groups of integers."""
        return self.packed.dtype == torch.uint8

    def packed_rows(self, ids: Int64[Tensor, "e"]) -> Weight:
        """Weights of some outputs, to pack them once more: grouped ones stay grouped."""
        if self.is_grouped:
            return unpack_grouped(self.packed, self.num_outputs).rows(ids)
        return self.rows(ids)

    def rows(self, ids: Int64[Tensor, "e"]) -> Float[Tensor, "e k"]:
        """Weights of some outputs: bfloat16, or the float32 numbers that int8 stands for."""
        if self.is_grouped:
            return unpack_grouped(self.packed, self.num_outputs).rows(ids).dequantise()
        block, lane = ids // BLOCK, ids % BLOCK
        if self.scales is not None:
            order = self.packed.view(len(self.packed), -1, 4, 2, 4, 2).permute(0, 3, 2, 4, 1, 5)
            bytes_ = order.reshape(-1, self.struct.k_padded)[ids, : self.num_inputs]
            magnitude = (bytes_ & 127).float()
            return torch.where(bytes_ < 0, -magnitude, magnitude) * self.scales[ids, None]
        found = self.packed[block, :, lane // LANES, lane % LANES]
        return found.flatten(1)[:, : self.num_inputs].contiguous()

    def num_bytes(self) -> int:
        """Memory of the packed weight, its scales and bias, in bytes."""
        vectors = [vector for vector in (self.scales, self.bias) if vector is not None]
        return self.packed.nbytes + sum(vector.nbytes for vector in vectors)


def quantise(
    weight: Float[Tensor, "n k"],
) -> tuple[Int8[Tensor, "n k"], Float32[Tensor, "n"]]:
    """Nearest integers -127..127 and the scale of each output: weight ~ scale * integer.

    Raises: ConfigError if a weight is infinite or not a number, which no integer stands for.
    """
    weight = weight.detach().float()
    scales = weight.abs().amax(dim=1) / 127
    faults = (~torch.isfinite(scales)).nonzero()
    if len(faults):
        raise ConfigError(
            f"output {int(faults[0])} of a weight {list(weight.shape)} is not finite, which int8"
            " cannot hold; repair the checkpoint, or keep it in bfloat16"
        )
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (weight / scales[:, None]).round().to(torch.int8), scales


class NativeLinear:
    """One linear layer on the native kernels.

    A row's result has the same bits for any number of rows and any neighbours.
    """

    def __init__(
        self,
        weight: Float[Tensor, "n k"],
        bias: Float[Tensor, "n"] | None = None,
        isa: str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self._isa = choose_isa(isa)
        self.linear = PackedLinear(weight, bias, dtype=dtype)

    def __call__(
        self, x: BFloat16[Tensor, "*rows k"], out_dtype: torch.dtype = torch.bfloat16
    ) -> Float[Tensor, "*rows n"]:
        """Sums are float32; `out_dtype` is bfloat16 or float32.

        Raises: ConfigError if `x` is not bfloat16 with k columns, or for another `out_dtype`.
        """
        return run_packed(self.linear, x, self._isa, out_dtype)

    def num_bytes(self) -> int:
        """Memory of the packed weight and bias, in bytes."""
        return self.linear.num_bytes()


def run_packed(
    linear: PackedLinear, x: BFloat16[Tensor, "*rows k"], isa: str, out_dtype: torch.dtype
) -> Float[Tensor, "*rows n"]:
    """W x + bias with weights that may belong to another model.

    Raises: ConfigError if `x` is not bfloat16 with k columns, or for another `out_dtype`.
    """
    check_rows(x, linear.num_inputs, "x")
    if out_dtype not in (torch.bfloat16, torch.float32):
        raise ConfigError(f"out_dtype is {out_dtype}; it must be bfloat16 or float32")
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], linear.num_outputs, dtype=out_dtype)
    kind = structs.OUT_F32 if out_dtype == torch.float32 else structs.OUT_BF16
    num_rows = x.numel() // linear.num_inputs
    pointer = ctypes.byref(linear.struct)
    number = structs.ISAS.index(isa)
    check_status(load().bd_run_linear(number, pointer, x.data_ptr(), num_rows, y.data_ptr(), kind))
    return y


@overload
def interleave_gate_up(gate_up: Tensor) -> Tensor: ...
@overload
def interleave_gate_up(gate_up: GroupedWeight) -> GroupedWeight: ...
def interleave_gate_up(gate_up: Weight) -> Weight:
    """Rows [gate; up] to alternating runs of 16 gate and 16 up rows, f padded to a multiple of 32.

    A block of 32 outputs then holds 16 gates and their inputs, so SwiGLU needs no other block.
    """
    width = gate_up.shape[0] // 2
    padded = _round_up(width)
    index = torch.arange(2 * width).view(2, width)
    index = functional.pad(index, (0, padded - width), value=-1)
    index = index.view(2, padded // LANES, LANES).transpose(0, 1).flatten()
    if isinstance(gate_up, GroupedWeight):
        return gate_up.rows(index)
    rows = gate_up[index.clamp(min=0)]
    return rows if padded == width else rows * (index >= 0)[:, None].to(rows.dtype)


def check_rows(x: Tensor, width: int, name: str) -> None:
    """Raises: ConfigError if `x` is not bfloat16 on the CPU with `width` columns."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or x.shape[-1] != width:
        given = f"{x.dtype} {list(x.shape)} on {x.device}"
        raise ConfigError(f"{name} is {given}; native kernels take bfloat16 [..., {width}] on cpu")


def _round_up(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


def check_weight_dtype(dtype: torch.dtype) -> None:
    """Raises: ConfigError if weights cannot be packed in `dtype`."""
    if dtype not in (torch.bfloat16, torch.int8):
        raise ConfigError(f"weight dtype is {dtype}; native kernels pack bfloat16 or int8")


def _padded_matrix(weight: Tensor) -> Tensor:
    n, k = weight.shape
    return functional.pad(weight, (0, _round_up(k) - k, 0, _round_up(n) - n)).contiguous()


def _blocks(weight: Tensor) -> Tensor:
    pairs = _padded_matrix(weight.to(torch.bfloat16)).view(torch.int32)
    return pairs.view(-1, 2, LANES, pairs.shape[1]).permute(0, 3, 1, 2)


def _quantised_blocks(weight: Tensor) -> Tensor:
    """Sign and magnitude, in the order of csrc/expand.h."""
    padded = _padded_matrix(weight)
    signs = padded < 0
    bytes_ = padded.abs().bitwise_or(signs.to(torch.int8).bitwise_left_shift(7))
    return bytes_.view(-1, 2, 4, 4, padded.shape[1] // 2, 2).permute(0, 4, 2, 1, 3, 5)


def _padded_vector(vector: Tensor) -> Tensor:
    n = vector.shape[0]
    return functional.pad(vector.to(torch.float32), (0, _round_up(n) - n)).contiguous()
