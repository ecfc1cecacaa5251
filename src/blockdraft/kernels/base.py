"""The small interface that layers run on: products with packed weights, and attention.

A backend is chosen once, when a model is loaded (`choose.py`); layers hold what it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F


class Linear(ABC):
    """y = x W^T + b with weights laid out once, at load."""

    @abstractmethod
    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n o"]:
        """The product for n rows."""

    @abstractmethod
    def add_to(
        self, residual: Float[Tensor, "n o"], x: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n o"]:
        """residual + product, in a new tensor."""

    @abstractmethod
    def rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e k"], Float[Tensor, "e"] | None]:
        """Weights and biases of some outputs, as they were given: copies."""

    @abstractmethod
    def num_bytes(self) -> int:
        """Memory of the packed weights, in bytes."""


class GatedPair(ABC):
    """silu(x G^T) * (x U^T): the two products of a SwiGLU layer (arXiv 2002.05202)."""

    @abstractmethod
    def __call__(self, x: Float[Tensor, "n k"]) -> Float[Tensor, "n o"]:
        """The gated product for n rows."""

    @abstractmethod
    def num_bytes(self) -> int:
        """Memory of the packed weights, in bytes."""


class Kernels(ABC):
    """A backend. Weights handed in may be freed by the caller afterwards."""

    name: str
    dtype: torch.dtype

    @abstractmethod
    def linear(
        self, weight: Float[Tensor, "o k"], bias: Float[Tensor, "o"] | None = None
    ) -> Linear:
        """Pack one weight matrix (and an optional bias) in the backend's dtype."""

    @abstractmethod
    def gated_pair(
        self,
        gate: Float[Tensor, "o k"],
        up: Float[Tensor, "o k"],
        gate_bias: Float[Tensor, "o"] | None = None,
        up_bias: Float[Tensor, "o"] | None = None,
    ) -> GatedPair:
        """Pack the two matrices of a SwiGLU layer."""

    def rms_norm(
        self, x: Float[Tensor, "... m"], weight: Float[Tensor, "m"], eps: float
    ) -> Float[Tensor, "... m"]:
        """x / rms(x) * weight over the last axis (arXiv 1910.07467)."""
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def attend(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b s g d"],
        v: Float[Tensor, "b s g d"],
        mask: Bool[Tensor, "b 1 t s"] | Float[Tensor, "b 1 t s"] | None,
        is_causal: bool = False,
    ) -> Float[Tensor, "b t hd"]:
        """softmax(q k^T / sqrt(d) + mask) v, h/g query heads to each key head."""
        b, t, h, d = q.shape
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=is_causal,
            enable_gqa=h != k.shape[2],
        )
        return out.transpose(1, 2).reshape(b, t, h * d)
