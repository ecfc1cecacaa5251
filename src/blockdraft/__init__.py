"""The same text from a frozen language model, faster: lossless block drafting.

from blockdraft import LLM, SamplingParams

llm = LLM("smollm2-135m")
[output] = llm.generate("Why is the sky blue?", SamplingParams(max_tokens=64))
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from blockdraft.errors import UserError

if TYPE_CHECKING:
    from blockdraft.engine.llm import LLM
    from blockdraft.types import SamplingParams

# PyTorch reads it at its first large tensor: training on a CPU is quicker on huge pages
# (docs/log.md). Who sets it keeps it.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__all__ = ["LLM", "SamplingParams", "UserError"]
_HOMES = {"LLM": "blockdraft.engine.llm", "SamplingParams": "blockdraft.types"}


def __getattr__(name: str) -> Any:
    # Late, so that `blockdraft --help` does not wait for PyTorch.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'blockdraft' has no attribute {name!r}")
