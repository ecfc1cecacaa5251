"""The cache moves, crops and clears slots without touching the others."""

from __future__ import annotations

import torch

from blockdraft.cache.target_kv import PADDING_ROWS, KVCache


def cache(num_slots: int = 3, max_len: int = 5) -> KVCache:
    made = KVCache(2, num_slots, max_len, 2, 4, torch.float32, torch.device("cpu"))
    made.k.normal_()
    made.v.normal_()
    made.lens = [5, 3, 2]
    return made


def test_move_takes_the_rows_along_and_empties_the_source() -> None:
    made = cache()
    k, v = made.k.clone(), made.v.clone()
    made.move(2, 0)
    assert made.lens == [2, 3, 0]
    assert torch.equal(made.k[:, 0, :2], k[:, 2, :2])
    assert torch.equal(made.v[:, 0, :2], v[:, 2, :2])
    assert torch.equal(made.k[:, 1], k[:, 1])


def test_write_puts_rows_at_their_flat_positions() -> None:
    made = cache()
    before = made.k.clone()
    new = torch.randn(2, 2, 2, 4)
    rows = made.num_rows
    index = torch.tensor([0 * rows + 5, 0 * rows + 6, 1 * rows + 3, 1 * rows + 4])
    made.write(1, index, new, -new)
    assert torch.equal(made.k[1, 0, 5:7], new[0])
    assert torch.equal(made.v[1, 1, 3:5], -new[1])
    assert torch.equal(made.k[0], before[0])
    assert torch.equal(made.k[1, 2], before[1, 2])


def test_clear_removes_what_a_mask_cannot_hide() -> None:
    made = cache()
    made.k[:, 1] = float("nan")
    made.clear(1)
    assert made.lens == [5, 0, 2]
    assert bool(torch.isfinite(made.k).all())


def test_rows_are_rounded_up_and_memory_is_told() -> None:
    made = KVCache(2, 1, 10, 2, 4, torch.float32, torch.device("cpu"), round_to=512)
    assert made.num_rows == 512
    plain = KVCache(2, 1, 10, 2, 4, torch.float32, torch.device("cpu"))
    assert plain.num_rows == 10 + PADDING_ROWS
    assert plain.num_bytes() == 2 * 2 * plain.num_rows * 2 * 4 * 4
