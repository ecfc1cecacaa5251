"""From scores to drafted candidates, and the q they were drawn from.

In a lattice, which candidate slot s takes depends on what slot s-1 became. Instead of one tensor
step a slot, the choice is made for every possible predecessor in one operation; the path is then a
chain of list look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from blockdraft.sampling.warp import draw

#: For each row, the candidate index chosen at each slot.
Paths = list[list[int]]


def walk_greedy(scores: Float32[Tensor, "b k c c"]) -> Paths:
    """The best candidate after each chosen one; the lowest index on ties."""
    return [_follow(choices) for choices in scores.argmax(-1).tolist()]


def walk_sampled(
    scores: Float32[Tensor, "b k c c"],
    temperatures: Sequence[float | None],
    uniforms: Float64[Tensor, "b k"],
) -> tuple[Paths, Float32[Tensor, "b k c"]]:
    """Draw a path: each candidate from softmax(score / temperature) given its predecessor.

    Args:
        scores: finite edge scores by slot, predecessor, candidate; slot 0 uses predecessor 0.
        temperatures: of each row; None walks greedily, with a one-hot q.
        uniforms: one draw in [0, 1) for each slot.
    Returns: the paths, and the distribution that each slot's candidate was really taken from: the
        row of the predecessor that was chosen, so that the chain is exact.
    """
    b, k, c, _ = scores.shape
    every = uniforms[:, :k].repeat_interleave(c, 1)
    chosen, q = draw_slots(scores.flatten(1, 2), temperatures, every)
    paths = [_follow(choices) for choices in chosen.view(b, k, c).tolist()]
    rows = [[s * c + at for s, at in enumerate([0, *path[:-1]])] for path in paths]
    index = torch.tensor(rows, device=scores.device)[..., None].expand(b, k, c)
    return paths, q.gather(1, index)


def draw_slots(
    scores: Float32[Tensor, "b n c"],
    temperatures: Sequence[float | None],
    uniforms: Float64[Tensor, "b n"],
) -> tuple[Int64[Tensor, "b n"], Float32[Tensor, "b n c"]]:
    """Draw one candidate from each softmax(score / temperature), on its own.

    Args: as for `walk_sampled`; a temperature of None takes the best, with a one-hot q.
    Returns: candidate indices, and the q of each.
    """
    b, n, c = scores.shape
    scale = torch.tensor([t or 1.0 for t in temperatures], device=scores.device)
    q = torch.softmax(scores / scale[:, None, None], -1)
    chosen = draw(q.view(-1, c), uniforms.reshape(-1)).view(b, n)
    if all(temperatures):
        return chosen, q
    is_greedy = torch.tensor([t is None for t in temperatures], device=scores.device)[:, None]
    chosen = torch.where(is_greedy, scores.argmax(-1), chosen)
    one_hot = torch.nn.functional.one_hot(chosen, c).to(q.dtype)
    return chosen, torch.where(is_greedy[..., None], one_hot, q)


def _follow(choices: Sequence[Sequence[int]]) -> list[int]:
    path, at = [], 0
    for slot in choices:
        at = slot[at]
        path.append(at)
    return path
