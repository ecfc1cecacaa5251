"""Edge scores of the selector against the formula, edge by edge."""

from __future__ import annotations

import pytest
import torch

from blockdraft.layers.selector import edge_scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_edge(dtype: torch.dtype) -> None:
    b, k, c, r, v = 2, 3, 4, 5, 11
    gen = torch.Generator().manual_seed(1)
    unary, gate = torch.randn(b, k, c, generator=gen), torch.randn(b, k, r, generator=gen)
    predecessors = torch.randn(v, r, generator=gen).to(dtype)
    successors = torch.randn(v, r, generator=gen).to(dtype)
    ids = torch.randint(0, v, (b, k, c), generator=gen)
    anchors = torch.tensor([3, 7])
    scores = edge_scores(unary, ids, anchors, gate, predecessors, successors)
    assert scores.dtype == torch.float32
    for i in range(b):
        for s in range(k):
            for p in range(c):
                before = anchors[i] if s == 0 else ids[i, s - 1, p]
                for t in range(c):
                    edge = predecessors[before].float() * gate[i, s] * successors[ids[i, s, t]]
                    expected = unary[i, s, t] + edge.sum()
                    torch.testing.assert_close(scores[i, s, p, t], expected)
