"""Passes of one shape: bit-equal logits however the rows are split, in bfloat16."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.targets.base import RowBatch
from blockdraft.targets.exact import ExactTarget
from tests.fakes.models import tiny_target

EXACT = ExactTarget(
    tiny_target(dtype=torch.bfloat16, max_context_len=1400, windows=(None, 40, 600, None))
)
IDS = torch.randint(0, 150, (1300,), generator=torch.Generator().manual_seed(3))


def decode(splits: list[int], start: int) -> torch.Tensor:
    cache = EXACT.new_cache(1, 1400)
    EXACT.forward(cache, RowBatch(IDS[None, :start], (start,), logits_for="none"))
    out, at = [], start
    for length in splits:
        batch = RowBatch(IDS[None, at : at + length], (length,), layer_ids=(1,))
        out.append(EXACT.forward(cache, batch))
        at += length
    assert cache.lens == [at]
    return torch.cat([torch.cat([o.logits, o.features], -1) for o in out], 1)


# 500..520 crosses a block of keys; 1020 the second one.
@pytest.mark.parametrize("start", [1, 60, 500, 505, 511, 1020])
@settings(max_examples=12, deadline=None)
@given(splits=st.lists(st.integers(1, 17), min_size=1, max_size=6))
def test_any_split_gives_the_same_bits(start: int, splits: list[int]) -> None:
    assert torch.equal(decode(splits, start), decode([1] * sum(splits), start))


def test_neighbours_change_no_bit() -> None:
    alone = decode([5, 3], 20)
    cache = EXACT.new_cache(3, 1400)
    for slot, n in enumerate((20, 7, 33)):
        EXACT.forward(cache, RowBatch(IDS[None, :n], (n,), slot, "none"))
    out = []
    for at, valid in ((20, (5, 2, 8)), (25, (3, 8, 1))):
        ids = torch.zeros(3, 8, dtype=torch.long)
        ids[0, : valid[0]] = IDS[at : at + valid[0]]
        done = EXACT.forward(cache, RowBatch(ids, valid, layer_ids=(1,)))
        out.append(torch.cat([done.logits, done.features], -1)[:1, : valid[0]])
    assert torch.equal(torch.cat(out, 1), alone)


def test_without_it_rows_are_not_promised_equal_but_near() -> None:
    inner = EXACT.inner
    cache = inner.new_cache(1, 1400)
    inner.forward(cache, RowBatch(IDS[None, :60], (60,), logits_for="none"))
    logits = inner.forward(cache, RowBatch(IDS[None, 60:68], (8,))).logits
    torch.testing.assert_close(logits, decode([8], 60)[..., :160], atol=0.3, rtol=0.1)
