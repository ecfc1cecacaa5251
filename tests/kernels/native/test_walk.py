"""The native greedy walk against the whole lattice in PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.errors import ConfigError
from blockdraft.kernels import native
from blockdraft.kernels.native.walk import walk_greedy
from blockdraft.layers import walk as reference
from blockdraft.layers.selector import edge_scores

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
VOCAB = 50


def case(b: int, k: int, c: int, rank: int, seed: int):  # type: ignore[no-untyped-def]
    gen = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen)

    ids = torch.stack([torch.randperm(VOCAB, generator=gen)[:c] for _ in range(b * k)])
    return (
        rand(b, k, rank),
        rand(b, k, c),
        ids.view(b, k, c),
        torch.randint(0, VOCAB, (b,), generator=gen),
        rand(VOCAB, rank).bfloat16(),
        rand(VOCAB, rank).bfloat16(),
    )


@settings(max_examples=60, deadline=None)
@given(
    b=st.integers(1, 4),
    k=st.integers(1, 8),
    c=st.integers(1, 16),
    rank=st.integers(1, 70),
    seed=st.integers(0, 10**6),
)
def test_walk_follows_the_best_edges(b: int, k: int, c: int, rank: int, seed: int) -> None:
    gate, values, ids, anchors, left, right = case(b, k, c, rank, seed)
    path, is_finite = walk_greedy(gate, values, ids, anchors, left, right)
    scores = edge_scores(values, ids, anchors, gate, left, right)
    index = torch.tensor(reference.walk_greedy(scores))
    assert torch.equal(path, ids.gather(-1, index[..., None])[..., 0])
    assert is_finite.tolist() == [True] * b


def test_rows_of_a_subset_become_its_tokens() -> None:
    """Codebooks by row: `token_ids` change what is told, not the way that is taken."""
    gate, values, rows, anchors, left, right = case(3, 4, 8, 16, 5)
    token_ids = torch.arange(VOCAB) * 3 + 1
    left = torch.cat([left, torch.randn(1, 16).bfloat16()])
    anchors[1] = VOCAB  # the row of every other token
    path, _ = walk_greedy(gate, values, rows, anchors, left, right, token_ids)
    scores = edge_scores(values, rows, anchors, gate, left, right)
    index = torch.tensor(reference.walk_greedy(scores))
    assert torch.equal(path, token_ids[rows.gather(-1, index[..., None])[..., 0]])


def test_rows_whose_scores_are_not_finite_are_told() -> None:
    gate, values, ids, anchors, left, right = case(3, 4, 8, 16, 1)
    values[1, 2, 5] = float("nan")
    path, is_finite = walk_greedy(gate, values, ids, anchors, left, right)
    assert is_finite.tolist() == [True, False, True]
    assert bool(((path >= 0) & (path < VOCAB)).all())


def test_ties_take_the_first_candidate() -> None:
    gate, values, ids, anchors, left, right = case(1, 2, 4, 8, 2)
    right.zero_()
    values[:] = torch.tensor([1.0, 3.0, 3.0, 2.0])
    path, _ = walk_greedy(gate, values, ids, anchors, left, right)
    assert torch.equal(path, ids[:, :, 1])


def test_wrong_tensors_are_refused() -> None:
    gate, values, ids, anchors, left, right = case(1, 2, 4, 8, 3)
    with pytest.raises(ConfigError, match="predecessors"):
        walk_greedy(gate, values, ids, anchors, left.float(), right)
    with pytest.raises(ConfigError, match="token_ids"):
        walk_greedy(gate, values, ids, anchors, left, right, torch.arange(VOCAB).int())
    with pytest.raises(ConfigError, match="gate"):
        walk_greedy(gate.repeat(1, 1, 2)[..., ::2], values, ids, anchors, left, right)
