"""Native random streams have the bits of `sampling.streams`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.kernels import native, streams
from blockdraft.kernels.native import library
from blockdraft.sampling import Purpose
from blockdraft.sampling import streams as reference

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
WORD = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(WORD, WORD, st.integers(0, 2**32 - 9)), min_size=0, max_size=5),
    width=st.integers(0, 8),
    purposes=st.lists(st.sampled_from(list(Purpose)), min_size=1, max_size=4),
)
def test_the_same_bits(
    rows: list[tuple[int, int, int]], width: int, purposes: list[Purpose]
) -> None:
    seeds, keys = [row[0] for row in rows], [row[1] for row in rows]
    starts = np.array([row[2] for row in rows], dtype=np.int64)
    positions = starts[:, None] + np.arange(width)
    assert library.is_loaded()
    expected = reference.uniforms_for(seeds, keys, positions, purposes)
    assert torch.equal(streams.uniforms_for(seeds, keys, positions, purposes), expected)


def test_without_the_kernels_in_use_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "is_loaded", lambda: False)
    monkeypatch.setattr(streams, "_function", None)
    positions = np.arange(6).reshape(2, 3)
    found = streams.uniforms_for([1, 2], [3, 4], positions, [Purpose.BONUS])
    assert torch.equal(found, reference.uniforms_for([1, 2], [3, 4], positions, [Purpose.BONUS]))


def test_what_is_out_of_range_is_refused() -> None:
    positions = np.zeros((1, 1), dtype=np.int64)
    with pytest.raises(ValueError, match="positions must be"):
        streams.uniforms_for([1], [1], positions - 1, [Purpose.DRAFT])
    with pytest.raises(ValueError, match="one seed"):
        streams.uniforms_for([1, 2], [1], positions, [Purpose.DRAFT])
    for seed in (2**64, -1):
        with pytest.raises(OverflowError):
            streams.uniforms_for([seed], [1], positions, [Purpose.DRAFT])
