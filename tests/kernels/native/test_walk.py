"""The native walks against the whole lattice in PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.errors import ConfigError
from blockdraft.kernels import native
from blockdraft.kernels.native.walk import WalkInput, walk_greedy, walk_sampled
from blockdraft.layers import walk as reference
from blockdraft.layers.selector import edge_scores
from blockdraft.sampling import draw

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
    path, finite_lens = walk_greedy(WalkInput(gate, values, ids, anchors, left, right))
    scores = edge_scores(values, ids, anchors, gate, left, right)
    index = torch.tensor(reference.walk_greedy(scores))
    assert torch.equal(path, ids.gather(-1, index[..., None])[..., 0])
    assert finite_lens == [k] * b


def test_rows_of_a_subset_become_its_tokens() -> None:
    """Codebooks by row: `token_ids` change what is told, not the way that is taken."""
    gate, values, rows, anchors, left, right = case(3, 4, 8, 16, 5)
    token_ids = torch.arange(VOCAB) * 3 + 1
    left = torch.cat([left, torch.randn(1, 16).bfloat16()])
    anchors[1] = VOCAB  # the row of every other token
    path, _ = walk_greedy(WalkInput(gate, values, rows, anchors, left, right, token_ids))
    scores = edge_scores(values, rows, anchors, gate, left, right)
    index = torch.tensor(reference.walk_greedy(scores))
    assert torch.equal(path, token_ids[rows.gather(-1, index[..., None])[..., 0]])


def test_rows_whose_scores_are_not_finite_are_told() -> None:
    gate, values, ids, anchors, left, right = case(3, 4, 8, 16, 1)
    values[1, 2, 5] = float("nan")
    path, finite_lens = walk_greedy(WalkInput(gate, values, ids, anchors, left, right))
    assert finite_lens == [4, 2, 4]
    assert bool(((path >= 0) & (path < VOCAB)).all())


def test_ties_take_the_first_candidate() -> None:
    gate, values, ids, anchors, left, right = case(1, 2, 4, 8, 2)
    right.zero_()
    values[:] = torch.tensor([1.0, 3.0, 3.0, 2.0])
    path, _ = walk_greedy(WalkInput(gate, values, ids, anchors, left, right))
    assert torch.equal(path, ids[:, :, 1])


def test_wrong_tensors_are_refused() -> None:
    gate, values, ids, anchors, left, right = case(1, 2, 4, 8, 3)
    with pytest.raises(ConfigError, match="predecessors"):
        walk_greedy(WalkInput(gate, values, ids, anchors, left.float(), right))
    with pytest.raises(ConfigError, match="token_ids"):
        walk_greedy(WalkInput(gate, values, ids, anchors, left, right, torch.arange(VOCAB).int()))
    with pytest.raises(ConfigError, match="gate"):
        walk_greedy(WalkInput(gate.repeat(1, 1, 2)[..., ::2], values, ids, anchors, left, right))


def drawn(given: WalkInput, temperatures: list[float | None], isa: str, seed: int = 0):  # type: ignore[no-untyped-def]
    b, k, _ = given.rows.shape
    u = torch.rand(b, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return u, *walk_sampled(given, temperatures, u, isa)


@settings(max_examples=40, deadline=None)
@given(
    b=st.integers(1, 4),
    k=st.integers(1, 8),
    c=st.integers(1, 16),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_a_drawn_path_comes_from_the_q_that_is_told(
    b: int, k: int, c: int, seed: int, data: st.DataObject
) -> None:
    """q is softmax of the edges behind the path, and each token a draw from these very numbers."""
    options = st.sampled_from([None, 0.3, 1.0, 2.5])
    temperatures = data.draw(st.lists(options, min_size=b, max_size=b))
    given = WalkInput(*case(b, k, c, 24, seed))
    scores = edge_scores(
        given.values, given.rows, given.anchors, given.gate, given.predecessors, given.successors
    )
    for isa in native.usable_isas():
        u, path, q, finite_lens = drawn(given, temperatures, isa, seed)
        assert finite_lens == [k] * b
        for i, temperature in enumerate(temperatures):
            at = 0
            for s in range(k):
                row = scores[i, s, at].double()
                if temperature is None:
                    at = int(row.argmax())
                    assert q[i, s].tolist() == [float(j == at) for j in range(c)]
                else:
                    law = (row / temperature).softmax(-1)
                    torch.testing.assert_close(q[i, s].double(), law, rtol=2e-4, atol=1e-7)
                    at = int(draw(q[i, s][None], u[i, s : s + 1])[0])
                assert int(path[i, s]) == int(given.rows[i, s, at])


@pytest.mark.parametrize("u", [0.0, 1.0 - 2.0**-53])
def test_a_candidate_of_probability_0_is_never_drawn(isa: str, u: float) -> None:
    gate, values, ids, anchors, left, right = case(2, 3, 6, 8, 4)
    values[..., 0] -= 500.0
    values[..., -1] -= 500.0
    given = WalkInput(gate, values, ids, anchors, left, right)
    uniforms = torch.full((2, 3), u, dtype=torch.float64)
    path, q, _ = walk_sampled(given, [0.5, 1.0], uniforms, isa)
    masses = (q * (ids == path[..., None])).sum(-1)
    assert bool((q[..., 0] == 0.0).all())
    assert bool((masses > 0.0).all())


def test_slots_from_the_first_non_finite_one_on_are_told(isa: str) -> None:
    """Wherever the walk stands then: how many are used depends on the drafts before alone."""
    gate, values, ids, anchors, left, right = case(3, 4, 8, 16, 1)
    values[1, 2, 5], values[2, 0, 0] = float("nan"), float("inf")
    given = WalkInput(gate, values, ids, anchors, left, right)
    _, path, q, finite_lens = drawn(given, [1.0, 0.7, 1.0], isa)
    assert finite_lens == [4, 2, 0]
    assert bool(((path >= 0) & (path < VOCAB)).all())
    torch.testing.assert_close(q.sum(-1), torch.ones(3, 4))


def test_rows_alone_draw_the_same(isa: str) -> None:
    tensors = case(5, 4, 8, 16, 7)
    u, path, q, _ = drawn(WalkInput(*tensors), [0.5, None, 1.0, 2.0, 0.9], isa)
    for i, temperature in enumerate([0.5, None, 1.0, 2.0, 0.9]):
        one = WalkInput(*(x[i : i + 1].contiguous() for x in tensors[:4]), *tensors[4:])
        alone, alone_q, _ = walk_sampled(one, [temperature], u[i : i + 1], isa)
        assert torch.equal(alone[0], path[i])
        assert torch.equal(alone_q[0], q[i])


def test_uniforms_of_another_shape_are_refused() -> None:
    given = WalkInput(*case(2, 3, 4, 8, 3))
    with pytest.raises(ConfigError, match="uniforms"):
        walk_sampled(given, [1.0, 1.0], torch.zeros(2, 2, dtype=torch.float64), "portable")
