"""Plain PyTorch: the reference for every other backend. Any device, any dtype."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.kernels.base import GatedPair, Kernels, Linear


class TorchLinear(Linear):
    """`F.linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n o"]:
        return F.linear(x, self.weight, self.bias)

    def add_to(
        self, residual: Float[Tensor, "n o"], x: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n o"]:
        return residual + self(x)

    def rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e k"], Float[Tensor, "e"] | None]:
        return self.weight[ids], None if self.bias is None else self.bias[ids]

    def num_bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class TorchGatedPair(GatedPair):
    """One product for both matrices, then the gate."""

    def __init__(self, both: TorchLinear) -> None:
        self.both = both

    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n o"]:
        gate, up = self.both(x).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def num_bytes(self) -> int:
        return self.both.num_bytes()


class TorchKernels(Kernels):
    """PyTorch as it is."""

    name = "torch"

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.dtype).contiguous()

    def linear(
        self, weight: Float[Tensor, "o k"], bias: Float[Tensor, "o"] | None = None
    ) -> TorchLinear:
        return TorchLinear(self._place(weight), None if bias is None else self._place(bias))

    def gated_pair(
        self,
        gate: Float[Tensor, "o k"],
        up: Float[Tensor, "o k"],
        gate_bias: Float[Tensor, "o"] | None = None,
        up_bias: Float[Tensor, "o"] | None = None,
    ) -> TorchGatedPair:
        if (gate_bias is None) != (up_bias is None):
            raise ValueError("gate and up must both have a bias, or neither")
        bias = None if gate_bias is None or up_bias is None else torch.cat([gate_bias, up_bias])
        return TorchGatedPair(self.linear(torch.cat([gate, up]), bias))
