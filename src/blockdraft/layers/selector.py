"""Candidate selector of DFlash 2: a low-rank score for every edge of the candidate lattice.

The head alone scores each slot without knowing what the slot before it became. The selector adds
to a candidate's own logit a bilinear term between it and its predecessor, seen through the slot's
hidden state; all edges at once, in float32, so that walking the lattice needs no tensor work.

Source: DFlash 2 (inco.ai/blog/dflash2, August 2026).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor


def edge_scores(
    unary: Float32[Tensor, "b k c"],
    candidates: Int64[Tensor, "b k c"],
    anchors: Int64[Tensor, "b"],
    gate: Float32[Tensor, "b k r"],
    predecessors: Float[Tensor, "p r"],
    successors: Float[Tensor, "e r"],
) -> Float32[Tensor, "b k c c"]:
    """score[s, p, c] = unary[s, c] + <predecessors[prev] * gate[s], successors[cand]>.

    Args:
        unary: transformed head logits of each slot's candidates.
        candidates: their rows in the codebooks.
        anchors: row of the token before slot 0, in `predecessors`.
        gate: projected hidden state of each slot.
        predecessors, successors: codebooks, one row a token; where only some tokens can be
            drafted, predecessors have one row more, for all others.
    Returns: scores by slot, predecessor (row p is candidate p of the slot before; every row of
        slot 0 is the anchor) and candidate.
    """
    b, k, c = candidates.shape
    rank = gate.shape[-1]
    first = anchors[:, None, None].expand(b, 1, c)
    previous = torch.cat([first, candidates[:, :-1]], 1)
    left = predecessors.index_select(0, previous.flatten()).float().view(b, k, c, rank)
    left = left * gate[:, :, None]
    right = successors.index_select(0, candidates.flatten()).float().view(b * k, c, rank)
    scores = torch.baddbmm(
        unary.reshape(b * k, 1, c), left.view(b * k, c, rank), right.transpose(1, 2)
    )
    return scores.view(b, k, c, c)
