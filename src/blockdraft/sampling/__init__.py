"""From logits to tokens: adjustments, the distribution, the draw, and the random streams."""

from __future__ import annotations

from blockdraft.sampling.adjust import AdjustRow, adjust_logits, check_params
from blockdraft.sampling.logprobs import TokenLogprob, token_logprobs
from blockdraft.sampling.streams import Purpose, uniforms, uniforms_for
from blockdraft.sampling.topk import choose, fast_topk
from blockdraft.sampling.warp import draw, nonfinite_rows, probabilities

__all__ = [
    "AdjustRow",
    "Purpose",
    "TokenLogprob",
    "adjust_logits",
    "check_params",
    "choose",
    "draw",
    "fast_topk",
    "nonfinite_rows",
    "probabilities",
    "token_logprobs",
    "uniforms",
    "uniforms_for",
]
