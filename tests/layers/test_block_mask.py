"""Visibility of a block equals the rule stated position by position."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.layers.block_mask import block_view

CPU = torch.device("cpu")


@settings(max_examples=100, deadline=None)
@given(
    anchors=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    width=st.integers(1, 8),
    window=st.one_of(st.none(), st.integers(1, 40)),
    is_causal=st.booleans(),
)
def test_equals_the_rule(
    anchors: list[int], width: int, window: int | None, is_causal: bool
) -> None:
    view = block_view(anchors, width, window, is_causal, torch.float32, CPU)
    for i, anchor in enumerate(anchors):
        for j in range(width):
            q = anchor + j
            for k in range(max(anchors) + width):
                seen = k < anchor + width and (not is_causal or k <= q)
                if window is not None:
                    seen &= q - k < window and (is_causal or k - q < window)
                is_read = view.first <= k < view.last
                assert is_read or not seen
                if is_read and view.mask is not None:
                    assert view.mask[i, 0, j, k - view.first] == (0 if seen else -torch.inf)
                if is_read and view.mask is None:
                    assert seen


def test_one_sequence_within_its_window_needs_no_mask() -> None:
    assert block_view([100], 8, None, False, torch.float32, CPU).mask is None
    assert block_view([100], 8, 108, False, torch.float32, CPU).mask is None
    assert block_view([100, 100], 8, None, False, torch.float32, CPU).mask is None
    assert block_view([100], 8, 107, False, torch.float32, CPU).mask is not None


def test_reads_no_more_than_the_window() -> None:
    view = block_view([5000], 8, 1024, False, torch.float32, CPU)
    assert (view.first, view.last) == (5000 - 1023, 5008)
