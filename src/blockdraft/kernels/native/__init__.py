"""Native CPU kernels in C, made for verification: eight rows cost what one row costs.

Weights are bfloat16 and packed once; sums are float32. A row's result has the same bits whatever
rows, neighbours, batches or number of threads it is computed with, so plain and speculative
decoding agree exactly.
"""

from __future__ import annotations

from blockdraft.kernels.native.build import BuildError, must_compile
from blockdraft.kernels.native.library import (
    available,
    choose_isa,
    set_num_threads,
    usable_isas,
    why_unavailable,
    workspace_bytes,
)
from blockdraft.kernels.native.linear import NativeLinear, PackedLinear
from blockdraft.kernels.native.model import ConvWeights, LayerWeights, ModelWeights
from blockdraft.kernels.native.passes import NativePass, PassResult, Span

__all__ = [
    "BuildError",
    "ConvWeights",
    "LayerWeights",
    "ModelWeights",
    "NativeLinear",
    "NativePass",
    "PackedLinear",
    "PassResult",
    "Span",
    "available",
    "choose_isa",
    "must_compile",
    "set_num_threads",
    "usable_isas",
    "why_unavailable",
    "workspace_bytes",
]
