"""Paths through candidates against brute force over all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.findings.choosers import CHOOSERS, beam, likeliest, longest, viterbi, walk

Worth = Callable[[Tensor, tuple[int, ...]], float]


def lattice(b: int, k: int, c: int, seed: int = 0) -> Tensor:
    """Random edges; every row of slot 0 is the anchor's."""
    scores = 2 * torch.randn(b, k, c, c, generator=torch.Generator().manual_seed(seed))
    scores[:, 0] = scores[:, 0, :1]
    return scores


def steps(scores: Tensor, path: tuple[int, ...]) -> list[float]:
    """What each slot of a path adds, for one row's scores [k c c]."""
    edges = zip((0, *path), path, strict=False)
    return [float(scores[s, before, at]) for s, (before, at) in enumerate(edges)]


def sum_of_scores(scores: Tensor, path: tuple[int, ...]) -> float:
    return sum(steps(scores, path))


def log_probability(scores: Tensor, path: tuple[int, ...]) -> float:
    return sum(steps(scores.log_softmax(-1), path))


def expected_length(scores: Tensor, path: tuple[int, ...]) -> float:
    prefixes = itertools.accumulate(steps(scores.softmax(-1), path), lambda a, b: a * b)
    return sum(prefixes)


@pytest.mark.parametrize(
    ("choose", "worth"),
    [
        (viterbi, sum_of_scores),
        (likeliest, log_probability),
        (longest, expected_length),
        (lambda scores: beam(scores, 1000), sum_of_scores),
    ],
)
@settings(max_examples=20, deadline=None)
@given(b=st.integers(1, 3), k=st.integers(1, 4), c=st.integers(1, 4), seed=st.integers(0, 999))
def test_finds_the_best_of_all_paths(
    choose: Callable[[Tensor], Tensor], worth: Worth, b: int, k: int, c: int, seed: int
) -> None:
    scores = lattice(b, k, c, seed)
    for row, path in zip(scores, choose(scores).tolist(), strict=True):
        best = max(worth(row, other) for other in itertools.product(range(c), repeat=k))
        assert worth(row, tuple(path)) == pytest.approx(best, abs=1e-5)


def beam_by_lists(scores: Tensor, width: int) -> list[int]:
    """One row's beam with plain lists."""
    paths: list[tuple[int, ...]] = [()]
    for _ in range(scores.shape[0]):
        longer = [(*path, at) for path in paths for at in range(scores.shape[-1])]
        paths = sorted(longer, key=lambda path: -sum_of_scores(scores, path))[:width]
    return list(paths[0])


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_beam_follows_the_best_partial_paths(width: int) -> None:
    scores = lattice(20, 5, 6)
    assert beam(scores, width).tolist() == [beam_by_lists(row, width) for row in scores]


def test_a_beam_of_one_is_the_walk() -> None:
    scores = lattice(20, 7, 5)
    assert torch.equal(beam(scores, 1), walk(scores))


def test_the_whole_block_can_cost_the_first_slot() -> None:
    """The walk takes what is best now, a sum over the block what the next slot makes up for."""
    scores = torch.zeros(1, 2, 2, 2)
    scores[0, 0, :, 0] = 1.0  # candidate 0 is better at once ..
    scores[0, 1, 1, 1] = 5.0  # .. but 1 is followed by what fits it well
    assert walk(scores).tolist() == [[0, 0]]
    assert viterbi(scores).tolist() == [[1, 1]]


def test_all_keep_to_the_candidates() -> None:
    scores = lattice(3, 4, 5)
    for choose in CHOOSERS.values():
        chosen = choose(scores)
        assert chosen.shape == (3, 4)
        assert int(chosen.min()) >= 0
        assert int(chosen.max()) < 5
