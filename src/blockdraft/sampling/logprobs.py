"""Log-probabilities that are reported to the user: of the raw logits, before any adjustment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockdraft.sampling.topk import fast_topk


@dataclass(frozen=True)
class TokenLogprob:
    """What the model thought of one emitted token.

    Attributes:
        token_id: the token.
        logprob: its natural log-probability.
        rank: 1 for the most likely token; tokens of equal logit share the better rank.
        top: the most likely tokens and their log-probabilities, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(
    logits: Float[Tensor, "n v"], ids: Int64[Tensor, "n"], top_n: int = 0
) -> list[TokenLogprob]:
    """Log-softmax in float32 of the chosen ids and of the `top_n` most likely ones.

    Args:
        logits: raw logits of the rows the ids were chosen from.
        ids: chosen token ids.
        top_n: how many best tokens to report, 0..v.
    Raises: ValueError if top_n is not 0..v.
    """
    if not 0 <= top_n <= logits.shape[-1]:
        raise ValueError(f"top_n is {top_n}; it must be 0 to {logits.shape[-1]}, the vocabulary")
    logits = logits.float()
    totals = torch.logsumexp(logits, -1, keepdim=True)
    chosen = logits.gather(-1, ids[:, None])
    ranks = (logits > chosen).sum(-1).add_(1).tolist()
    tops = _tops(logits, totals, top_n)
    logprobs = (chosen - totals)[:, 0].tolist()
    return [TokenLogprob(*one) for one in zip(ids.tolist(), logprobs, ranks, tops, strict=True)]


def _tops(
    logits: Float[Tensor, "n v"], totals: Float[Tensor, "n 1"], top_n: int
) -> list[tuple[tuple[int, float], ...]]:
    if top_n == 0:
        return [()] * len(logits)
    values, ids = fast_topk(logits, top_n)
    logprobs = (values - totals).tolist()
    pairs = zip(ids.tolist(), logprobs, strict=True)
    return [tuple(zip(row_ids, row, strict=True)) for row_ids, row in pairs]
