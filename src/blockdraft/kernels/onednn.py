"""oneDNN products with weights laid out once. `F.linear` in bfloat16 lays them out at every call.

The residual add and the SwiGLU gate are fused into the products (oneDNN post-operations), which
saves passes over memory and operator calls.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockdraft.kernels.base import GatedPair, Kernels, Linear

#: Rows the layout is tuned for: other numbers were no better (`docs/log.md`).
PACK_ROWS = 8


def is_available() -> bool:
    """Whether this PyTorch can pack weights for oneDNN."""
    return bool(
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class OneDnnLinear(Linear):
    """A product whose weights oneDNN has laid out."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._nbytes = weight.nbytes
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.clone(), PACK_ROWS)
        self.bias = bias

    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n o"]:
        return _pointwise(x, self.packed, self.bias, "none")

    def add_to(
        self, residual: Float[Tensor, "n o"], x: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n o"]:
        return _binary(x, residual, self.packed, self.bias, "add")

    def rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e k"], Float[Tensor, "e"] | None]:
        return self.packed.to_dense()[ids], None if self.bias is None else self.bias[ids]

    def num_bytes(self) -> int:
        return self._nbytes + (0 if self.bias is None else self.bias.nbytes)


class OneDnnGatedPair(GatedPair):
    """Two products; the gate is a post-operation of the second."""

    def __init__(self, gate: OneDnnLinear, up: OneDnnLinear) -> None:
        self.gate, self.up = gate, up

    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n o"]:
        gated = _pointwise(x, self.gate.packed, self.gate.bias, "swish")
        return _binary(x, gated, self.up.packed, self.up.bias, "mul")

    def num_bytes(self) -> int:
        return self.gate.num_bytes() + self.up.num_bytes()


class OneDnnKernels(Kernels):
    """oneDNN on the CPU."""

    name = "onednn"

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(device="cpu", dtype=self.dtype).contiguous()

    def linear(
        self, weight: Float[Tensor, "o k"], bias: Float[Tensor, "o"] | None = None
    ) -> OneDnnLinear:
        return OneDnnLinear(self._place(weight), None if bias is None else self._place(bias))

    def gated_pair(
        self,
        gate: Float[Tensor, "o k"],
        up: Float[Tensor, "o k"],
        gate_bias: Float[Tensor, "o"] | None = None,
        up_bias: Float[Tensor, "o"] | None = None,
    ) -> OneDnnGatedPair:
        return OneDnnGatedPair(self.linear(gate, gate_bias), self.linear(up, up_bias))


def _pointwise(x: Tensor, packed: Tensor, bias: Tensor | None, post: str) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, post, [], "")
    return out


def _binary(x: Tensor, other: Tensor, packed: Tensor, bias: Tensor | None, post: str) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, bias, post)
    return out
