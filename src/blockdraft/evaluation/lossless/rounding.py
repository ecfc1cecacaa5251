"""How far two passes over the same text may round apart: what a tie is, and what a fault."""

from __future__ import annotations

import torch

from blockdraft.engine.llm import LLM
from blockdraft.targets.exact import ExactTarget

#: Difference of a logit between passes of two shapes, as a share of the greatest logit's size.
#: bfloat16: four steps of its 8 bits; float32: what thousands of additions in another order move.
_SHARE = {torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8, torch.float32: 2.0**-16}
_EXACT_SHARE = 2.0**-20


def is_bit_exact(llm: LLM) -> bool:
    """Whether a row's logits are promised to have the same bits in every pass."""
    return llm.loaded.kernels.startswith("native") or isinstance(llm.target, ExactTarget)


def must_be_equal(llm: LLM) -> bool:
    """Whether greedy texts with and without a drafter have no excuse to differ.

    Passes agree to the bit, or they are float32, where two best tokens are never within rounding.
    """
    return is_bit_exact(llm) or llm.target.info.dtype == torch.float32


def edge_share(llm: LLM) -> float:
    """How far logits may move, as a share of the greatest, where a filter's edge is looked at.

    Not 0 even where passes agree to the bit: the reference law adds up in another order.
    """
    return _EXACT_SHARE if is_bit_exact(llm) else _SHARE[llm.target.info.dtype]


def tie_bound(llm: LLM, top_logit: float) -> float:
    """Two logits nearer than this may change places between passes; 0 where none may."""
    if is_bit_exact(llm):
        return 0.0
    return _SHARE[llm.target.info.dtype] * max(1.0, abs(top_logit))
