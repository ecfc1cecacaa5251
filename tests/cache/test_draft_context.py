"""The draft context's book-keeping: places, moves, and that a freed slot holds nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blockdraft.cache.draft_context import KVDraftContext, Project
from blockdraft.errors import CapacityError


def project(features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Two layers, one head of width 2: keys say feature and position, values their negative."""
    k = torch.stack([features[:, 0], positions.to(features.dtype)], -1)[None, :, None]
    k = k.expand(2, -1, -1, -1)
    return k, -k


def new(num_slots: int = 3, max_len: int = 10, project: Project = project) -> KVDraftContext:
    return KVDraftContext(
        project,
        num_layers=2,
        num_slots=num_slots,
        max_len=max_len,
        block_len=4,
        num_kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def rows(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def held(context: KVDraftContext, slot: int) -> list[list[float]]:
    assert torch.equal(context.v, -context.k)
    return context.k[1, slot, : context.lens[slot], 0].tolist()


def test_rows_go_to_their_positions() -> None:
    context = new()
    features = torch.stack([rows(1, 2, 99), rows(3, 99, 99)])
    context.append(features, 1, [0, 0], [2, 1])
    context.append(rows(4)[None], 2, [1], [1])
    assert context.lens == [0, 2, 2]
    assert held(context, 1) == [[1, 0], [2, 1]]
    assert held(context, 2) == [[3, 0], [4, 1]]


def test_a_row_with_nothing_new_stays() -> None:
    context = new()
    context.append(torch.stack([rows(1, 2), rows(3, 4)]), 0, [0, 0], [2, 0])
    assert context.lens == [2, 0, 0]
    context.append(torch.zeros(2, 1, 1), 0, [2, 0], [0, 0])
    assert context.lens == [2, 0, 0]
    assert held(context, 0) == [[1, 0], [2, 1]]


def test_appending_before_the_end_replaces_and_forgets() -> None:
    context = new()
    context.append(rows(1, 2, 3, 4)[None], 0, [0], [4])
    context.append(rows(9)[None], 0, [1], [1])
    assert held(context, 0) == [[1, 0], [9, 1]]
    assert not bool(context.k[:, 0, 2:].any())


def test_rows_that_wait_for_a_freed_slot_are_never_projected() -> None:
    seen: list[int] = []

    def watched(features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        seen.extend(features[:, 0].int().tolist())
        return project(features, positions)

    context = new(project=watched)
    context.append(torch.stack([rows(1, 2), rows(3, 4)]), 0, [0, 0], [2, 2])
    context.append(rows(5)[None], 1, [2], [1])
    context.reset(1)
    assert context.num_bytes() > 0
    assert seen == []
    assert held(context, 0) == [[1, 0], [2, 1]]
    assert seen == [1, 2]
    context.append(rows(7)[None], 1, [0], [1])
    assert held(context, 1) == [[7, 0]]


def test_a_hole_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        new().append(rows(1)[None], 0, [1], [1])


def test_move_and_reset_leave_nothing_behind() -> None:
    """A NaN that a request brought can not reach the next one in its slot."""
    context = new()
    context.append(rows(float("nan"), 1, 2, 3)[None], 0, [0], [4])
    context.write_block(
        0, context.block_index([4], 4).flatten(), *[torch.full((4, 1, 2), torch.nan)] * 2
    )
    context.append(rows(5, 6)[None], 2, [0], [2])
    context.move(2, 0)
    assert context.lens == [2, 0, 0]
    assert held(context, 0) == [[5, 0], [6, 1]]
    assert bool(torch.isfinite(context.k).all())
    assert not bool(context.k[:, 2].any())
    context.reset(0)
    assert not bool(context.k.any())
    assert not bool(context.v.any())


def test_block_rows_stand_behind_each_context() -> None:
    context = new()
    context.append(torch.stack([rows(1, 2), rows(3, 4)]), 0, [0, 0], [2, 1])
    index = context.block_index([2, 1], 4)
    assert (index % context.num_rows).tolist() == [[2, 3, 4, 5], [1, 2, 3, 4]]
    assert (index // context.num_rows).tolist() == [[0] * 4, [1] * 4]


def test_memory_is_told_and_refused() -> None:
    assert new().num_bytes() == 2 * 4 * (2 * 3 * 14 * 2)
    with pytest.raises(CapacityError, match="lower the batch size"):
        new(max_len=2**50)
