"""Zeros on huge pages: values, alignment, life, and what is refused."""

from __future__ import annotations

import gc
import mmap
from types import SimpleNamespace

import pytest
import torch

from blockdraft.kernels import huge_pages
from blockdraft.kernels.huge_pages import huge_bytes, huge_zeros

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.parametrize("shape", [(3, 5), (2, 700, 3, 512), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_of_any_size(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = huge_zeros(shape, dtype, CPU)
    assert (tuple(found.shape), found.dtype) == (shape, dtype)
    assert found.is_contiguous()
    assert not bool(found.any())
    found.fill_(1)
    assert bool((found == 1).all())


def test_large_ones_begin_on_a_huge_page() -> None:
    assert huge_zeros((3 * MIB,), torch.bfloat16, CPU).data_ptr() % (2 * MIB) == 0


def test_a_view_keeps_the_memory() -> None:
    whole = huge_bytes(4 * MIB)
    whole[-1] = 7
    part = whole[-2:]
    del whole
    gc.collect()
    assert part.tolist() == [0, 7]


def test_a_system_without_huge_pages_has_ordinary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(22, "Invalid argument")

    names = {name: getattr(mmap, name) for name in dir(mmap)}
    monkeypatch.setattr(huge_pages, "mmap", SimpleNamespace(**{**names, "mmap": Refusing}))
    assert not bool(huge_zeros((3 * MIB,), torch.bfloat16, CPU).any())
    monkeypatch.setattr(huge_pages, "mmap", SimpleNamespace())
    assert not bool(huge_zeros((3 * MIB,), torch.bfloat16, CPU).any())


@pytest.mark.parametrize("count", [2**46, 2**62])
def test_more_than_there_is_is_an_error(count: int) -> None:
    with pytest.raises(RuntimeError, match=r"no \d+ bytes"):
        huge_zeros((count,), torch.float32, CPU)
