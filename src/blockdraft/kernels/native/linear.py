"""Linear layers in bfloat16, their weights packed once for any number of rows."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import BFloat16, Float
from torch import Tensor
from torch.nn import functional

from blockdraft.errors import ConfigError
from blockdraft.kernels.native import structs
from blockdraft.kernels.native.library import check_status, choose_isa, load
from blockdraft.kernels.native.memory import WeightArena, aligned

BLOCK = 32
LANES = 16


def packed_bytes(num_outputs: int, num_inputs: int) -> int:
    """Arena bytes of a packed weight."""
    return aligned(2 * _round_up(num_outputs) * _round_up(num_inputs))


class PackedLinear:
    """y = W x + bias, ready for the C side. Several models may share one.

    The weight lies as `[outputs / 32][inputs / 2][2][16][2]`: one 64-byte load holds two
    consecutive inputs of 16 outputs, which is what one vdpbf16ps, and a row of one AMX tile,
    consumes. Both dimensions are padded to a multiple of 32 by zeros.
    """

    def __init__(
        self,
        weight: Float[Tensor, "n k"],
        bias: Float[Tensor, "n"] | None = None,
        arena: WeightArena | None = None,
    ) -> None:
        """Copies `weight` (rounded to bfloat16) into `arena`, or into memory of its own.

        Raises: ConfigError if the weight is not a matrix, or the bias does not fit it.
        """
        if weight.ndim != 2 or 0 in weight.shape:
            raise ConfigError(f"weight has shape {list(weight.shape)}; give [outputs, inputs]")
        self.num_outputs, self.num_inputs = weight.shape
        if bias is not None and bias.shape != (self.num_outputs,):
            raise ConfigError(f"bias has shape {list(bias.shape)}; give [{self.num_outputs}]")
        shape = (_round_up(self.num_outputs) // BLOCK, _round_up(self.num_inputs) // 2, 2, LANES, 2)
        arena = arena or WeightArena(packed_bytes(*weight.shape))
        self.packed = arena.take(shape, torch.bfloat16)
        self.packed.view(torch.int32).squeeze(-1).copy_(_blocks(weight))
        self.bias = None if bias is None else _padded_bias(bias)
        self.struct = structs.LinearStruct(
            self.packed.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
            self.num_outputs,
            self.num_inputs,
            2 * shape[1],
            shape[0],
        )

    def num_bytes(self) -> int:
        """Memory of the packed weight and bias, in bytes."""
        return self.packed.nbytes + (0 if self.bias is None else self.bias.nbytes)


class NativeLinear:
    """One linear layer on the native kernels.

    A row's result has the same bits for any number of rows and any neighbours.
    """

    def __init__(
        self,
        weight: Float[Tensor, "n k"],
        bias: Float[Tensor, "n"] | None = None,
        isa: str | None = None,
    ) -> None:
        self._isa = structs.ISAS.index(choose_isa(isa))
        self.linear = PackedLinear(weight, bias)

    def __call__(
        self, x: BFloat16[Tensor, "*rows k"], out_dtype: torch.dtype = torch.bfloat16
    ) -> Float[Tensor, "*rows n"]:
        """Sums are float32; `out_dtype` is bfloat16 or float32.

        Raises: ConfigError if `x` is not bfloat16 with k columns, or for another `out_dtype`.
        """
        return run_packed(self.linear, x, structs.ISAS[self._isa], out_dtype)

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


def interleave_gate_up(gate_up: Float[Tensor, "2*f k"]) -> Float[Tensor, "2*g k"]:
    """Rows [gate; up] to alternating runs of 16 gate and 16 up rows, f padded to a multiple of 32.

    A block of 32 outputs then holds 16 gates and their inputs, so SwiGLU needs no other block.
    """
    width = gate_up.shape[0] // 2
    padded = _round_up(width)
    halves = gate_up.view(2, width, -1)
    halves = functional.pad(halves, (0, 0, 0, padded - width))
    return halves.view(2, padded // LANES, LANES, -1).transpose(0, 1).reshape(2 * padded, -1)


def check_rows(x: Tensor, width: int, name: str) -> None:
    """Raises: ConfigError if `x` is not bfloat16 on the CPU with `width` columns."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or x.shape[-1] != width:
        given = f"{x.dtype} {list(x.shape)} on {x.device}"
        raise ConfigError(f"{name} is {given}; native kernels take bfloat16 [..., {width}] on cpu")


def _round_up(count: int) -> int:
    return -(-count // BLOCK) * BLOCK


def _blocks(weight: Tensor) -> Tensor:
    n, k = weight.shape
    weight = functional.pad(weight.to(torch.bfloat16), (0, _round_up(k) - k, 0, _round_up(n) - n))
    pairs = weight.contiguous().view(torch.int32).view(-1, 2, LANES, _round_up(k) // 2)
    return pairs.permute(0, 3, 1, 2)


def _padded_bias(bias: Tensor) -> Tensor:
    n = bias.shape[0]
    return functional.pad(bias.to(torch.float32), (0, _round_up(n) - n)).contiguous()
