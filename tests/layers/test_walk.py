"""Walks against a plain loop, and the law of what is drawn against the q that is reported."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdraft.layers.walk import draw_slots, walk_greedy, walk_sampled
from blockdraft.sampling.warp import draw


def lattice(b: int, k: int, c: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(b, k, c, c, generator=torch.Generator().manual_seed(seed))


def loop(scores: Tensor, temperature: float | None, u: Tensor) -> tuple[list[int], Tensor]:
    """One row, one slot after the other: the path and the q of each slot."""
    at, path, laws = 0, [], []
    for s in range(scores.shape[0]):
        row = scores[s, at]
        if temperature is None:
            at = int(row.argmax())
            law = torch.zeros_like(row)
            law[at] = 1
        else:
            law = (row / temperature).softmax(-1)
            at = int(draw(law[None], u[s : s + 1])[0])
        path.append(at)
        laws.append(law)
    return path, torch.stack(laws)


@settings(max_examples=40, deadline=None)
@given(
    b=st.integers(1, 4),
    k=st.integers(1, 7),
    c=st.integers(1, 6),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_equals_the_loop(b: int, k: int, c: int, seed: int, data: st.DataObject) -> None:
    """Rows of any temperature side by side; a row's walk does not see its neighbours."""
    scores = lattice(b, k, c, seed)
    options = st.sampled_from([None, 0.3, 1.0, 2.5])
    temperatures = data.draw(st.lists(options, min_size=b, max_size=b))
    u = torch.rand(b, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    paths, q = walk_sampled(scores, temperatures, u)
    for i in range(b):
        path, laws = loop(scores[i], temperatures[i], u[i])
        assert paths[i] == path
        torch.testing.assert_close(q[i], laws)
    assert walk_greedy(scores) == [loop(row, None, u[0])[0] for row in scores]


def test_ties_go_to_the_better_candidate() -> None:
    assert walk_greedy(torch.zeros(1, 3, 4, 4)) == [[0, 0, 0]]


def test_paths_follow_the_product_of_the_reported_q() -> None:
    """A grid of uniforms covers every path in proportion to its probability, to a grid step."""
    steps, scores = 300, lattice(1, 2, 3)
    grid = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    u = torch.cartesian_prod(grid, grid)
    paths, q = walk_sampled(scores.expand(len(u), -1, -1, -1), [0.8] * len(u), u)
    drawn = torch.tensor(paths)
    for path in itertools.product(range(3), repeat=2):
        first = (scores[0, 0, 0] / 0.8).softmax(-1)[path[0]]
        second = (scores[0, 1, path[0]] / 0.8).softmax(-1)[path[1]]
        is_path = (drawn == torch.tensor(path)).all(-1)
        assert abs(float(is_path.double().mean()) - float(first * second)) < 2 / steps
        mine = q[is_path][0]
        torch.testing.assert_close(mine[0, path[0]] * mine[1, path[1]], first * second)


def test_q_sums_to_one_and_is_positive_where_drawn() -> None:
    scores = lattice(64, 7, 16) * 10
    u = torch.rand(64, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u[0], u[1] = 0.0, 1 - 2**-53
    paths, q = walk_sampled(scores, [0.7] * 64, u)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q.sum(-1), torch.ones(64, 7))
    assert bool((q.gather(-1, torch.tensor(paths)[..., None]) > 0).all())


def test_independent_slots() -> None:
    scores = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(3))
    u = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    chosen, q = draw_slots(scores, [1.5, None], u)
    torch.testing.assert_close(q[0], (scores[0] / 1.5).softmax(-1))
    assert torch.equal(chosen[1], scores[1].argmax(-1))
    assert torch.equal(q[1], torch.nn.functional.one_hot(chosen[1], 5).float())
