"""Ways to choose one path through a block's candidates, given the scores of all edges.

Each takes scores [b, k, c, c] by slot, predecessor and candidate (slot 0 uses predecessor 0), as
`layers.selector.edge_scores` gives them: a candidate's own logit and what its predecessor adds.
Each returns the index of the chosen candidate of every slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from blockdraft.layers.walk import walk_greedy

Scores = Float32[Tensor, "b k c c"]
Chosen = Int64[Tensor, "b k"]


def top1(scores: Scores) -> Chosen:
    """Each slot's best candidate by its own logit: what the head alone would draft."""
    return torch.zeros(scores.shape[:2], dtype=torch.long)


def walk(scores: Scores) -> Chosen:
    """The best candidate after each chosen one: what DFlash 2 drafts."""
    return torch.tensor(walk_greedy(scores))


def viterbi(scores: Scores) -> Chosen:
    """The path with the greatest sum of scores over the whole block."""
    total, came = scores[:, 0, 0], []
    for slot in scores[:, 1:].unbind(1):
        total, before = (total[..., None] + slot).max(1)
        came.append(before)
    at = total.argmax(-1)
    path = [at]
    for before in reversed(came):
        at = before.gather(1, at[:, None])[:, 0]
        path.append(at)
    return torch.stack(path[::-1], 1)


def likeliest(scores: Scores) -> Chosen:
    """The path of the greatest probability, each slot's q being the softmax of its scores."""
    return viterbi(torch.log_softmax(scores, -1))


def longest(scores: Scores) -> Chosen:
    """The path that q expects to be accepted longest: the greatest sum of its prefixes' q."""
    q, worth, choices = torch.softmax(scores, -1), torch.zeros_like(scores[:, 0, 0]), []
    for slot in reversed(q.unbind(1)):
        worth, choice = (slot * (1 + worth[:, None])).max(-1)
        choices.append(choice)
    at, path = torch.zeros_like(choices[0][:, 0]), []
    for choice in reversed(choices):
        at = choice.gather(1, at[:, None])[:, 0]
        path.append(at)
    return torch.stack(path, 1)


def beam(scores: Scores, width: int) -> Chosen:
    """As `viterbi`, but only the best `width` partial paths are followed."""
    c = scores.shape[-1]
    total, last = scores[:, 0, 0].topk(min(width, c))
    paths = last[..., None]
    for slot in scores[:, 1:].unbind(1):
        edges = slot.gather(1, last[..., None].expand(-1, -1, c))
        sums = (total[..., None] + edges).flatten(1)
        total, at = sums.topk(min(width, sums.shape[1]))
        parent, last = at // c, at % c
        kept = paths.gather(1, parent[..., None].expand(-1, -1, paths.shape[-1]))
        paths = torch.cat([kept, last[..., None]], -1)
    return paths[:, 0]


CHOOSERS: Mapping[str, Callable[[Scores], Chosen]] = {
    "top1": top1,
    "walk": walk,
    "beam4": lambda scores: beam(scores, 4),
    "beam16": lambda scores: beam(scores, 16),
    "viterbi": viterbi,
    "likeliest": likeliest,
    "longest": longest,
}
