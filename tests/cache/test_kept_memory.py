"""Memory of caches that are gone: who gets it, when it comes back, and how much stays."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from blockdraft.cache.kept_memory import KeptMemory

CPU = torch.device("cpu")
MIB = 2**20


def take(memory: KeptMemory, mib: float, dtype: torch.dtype = torch.uint8) -> Tensor:
    return memory.take((int(mib * MIB) // dtype.itemsize,), dtype, CPU)


def test_the_next_cache_gets_the_same_memory_as_it_was_left() -> None:
    memory = KeptMemory()
    first = memory.take((4, 2 * MIB), torch.bfloat16, CPU)
    assert first.is_contiguous()
    assert not bool(first.any())
    first.fill_(7)
    place = first.data_ptr()
    assert memory.num_bytes() == 0
    del first
    assert memory.num_bytes() == 16 * MIB
    second = memory.take((2, MIB), torch.float32, CPU)
    assert (second.data_ptr(), tuple(second.shape), second.dtype) == (
        place,
        (2, MIB),
        torch.float32,
    )
    assert bool(second.view(torch.bfloat16).eq(7).all())
    assert memory.num_bytes() == 0


def test_a_view_is_enough_to_hold_it() -> None:
    memory = KeptMemory()
    first = take(memory, 4)
    view = first[5:9].fill_(3)
    del first
    gc.collect()
    other = take(memory, 4).fill_(1)
    assert view.tolist() == [3] * 4
    assert memory.num_bytes() == 0
    del view, other
    assert memory.num_bytes() == 8 * MIB


def test_borrowers_of_the_same_time_share_nothing() -> None:
    memory = KeptMemory()
    places = [take(memory, 4).data_ptr() for _ in range(3)]
    assert len(set(places)) == 1
    held = [take(memory, 4).fill_(i) for i in range(3)]
    assert [int(x.max()) for x in held] == [int(x.min()) for x in held] == [0, 1, 2]


def test_the_smallest_that_is_enough_is_lent() -> None:
    memory = KeptMemory()
    held = [take(memory, mib) for mib in (16, 4, 8)]
    large, small, middle = (x.data_ptr() for x in held)
    del held
    lent = [take(memory, mib) for mib in (3, 5, 5)]
    assert [x.data_ptr() for x in lent] == [small, middle, large]


def test_what_is_too_small_makes_room_for_more() -> None:
    memory = KeptMemory()
    held = [take(memory, 4), take(memory, 4)]
    del held
    assert memory.num_bytes() == 8 * MIB
    large = take(memory, 64)
    assert memory.num_bytes() == 0
    del large
    assert memory.num_bytes() == 64 * MIB


def test_a_little_more_fits_the_next_time() -> None:
    memory = KeptMemory()
    first = take(memory, 65)
    place = first.data_ptr()
    del first
    assert 65 * MIB < memory.num_bytes() <= 65 * MIB * 9 / 8
    assert take(memory, 72).data_ptr() == place


def test_no_more_is_kept_than_was_said() -> None:
    memory = KeptMemory(most_bytes=16 * MIB)
    held = [take(memory, mib) for mib in (8, 4, 6, 5)]
    for _ in range(4):
        held.pop(0)
        assert memory.num_bytes() <= 16 * MIB
    assert memory.num_bytes() == (4 + 6 + 6) * MIB  # the last is rounded up
    # Of a cache that needs more than there may be, nothing stays.
    large = take(memory, 9)
    assert memory.num_bytes() == 0
    del large
    assert memory.num_bytes() == 0


def test_both_tensors_of_the_largest_cache_stay() -> None:
    """Whatever the bound is: rounding up does not push one of the two out."""
    memory = KeptMemory(most_bytes=99 * MIB)
    held = [take(memory, 49), take(memory, 49)]
    del held
    assert memory.num_bytes() == 99 * MIB


@pytest.mark.parametrize("shape", [(3, 5), (0, 4)])
def test_small_tensors_are_zeros_of_their_own(shape: tuple[int, ...]) -> None:
    memory = KeptMemory()
    first = memory.take(shape, torch.float32, CPU).fill_(1)
    assert not bool(memory.take(shape, torch.float32, CPU).any())
    del first
    assert memory.num_bytes() == 0


def test_it_goes_with_its_owner() -> None:
    """What is lent stays good without the owner; given back then, it is freed."""
    memory = KeptMemory()
    lent, idle = take(memory, 4).fill_(5), take(memory, 4)
    del idle
    owner = weakref.ref(memory)
    del memory
    gc.collect()
    assert bool(lent.eq(5).all())
    del lent
    assert owner() is None


def test_a_loan_may_end_in_a_cycle_of_objects() -> None:
    memory = KeptMemory()
    cycle: list[object] = [take(memory, 4)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert memory.num_bytes() == 4 * MIB


def test_more_than_there_is_is_an_error() -> None:
    memory = KeptMemory()
    with pytest.raises(RuntimeError, match=r"no \d+ bytes"):
        memory.take((2**62,), torch.float32, CPU)
