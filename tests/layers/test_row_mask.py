"""Causal visibility against the definition, row by row."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from blockdraft.layers.row_mask import RowView, causal_view

CPU = torch.device("cpu")


def visible(view: RowView, starts: list[int], t: int) -> torch.Tensor:
    """The whole visibility [b, t, last] that a view stands for."""
    b, out = len(starts), None
    full = torch.zeros(b, t, view.last, dtype=torch.bool)
    if view.is_causal:
        out = torch.ones(t, t, dtype=torch.bool).tril()[None].expand(b, t, t)
    elif view.mask is None:
        out = torch.ones(b, t, view.last - view.first, dtype=torch.bool)
    else:
        out = view.mask[:, 0]
    full[:, :, view.first :] = out
    return full


@given(
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    t=st.integers(1, 9),
    window=st.one_of(st.none(), st.integers(1, 50)),
    reach=st.one_of(st.none(), st.integers(50, 64)),
)
def test_view_is_the_definition(
    starts: list[int], t: int, window: int | None, reach: int | None
) -> None:
    view = causal_view(starts, t, window, CPU, reach)
    got = visible(view, starts, t)
    for i, start in enumerate(starts):
        for j in range(t):
            q = start + j
            want = [k <= q and (window is None or q - k < window) for k in range(view.last)]
            assert got[i, j].tolist() == want
    assert view.last >= max(starts) + t


def test_rows_outside_all_windows_are_not_read() -> None:
    assert causal_view([100, 90], 4, 16, CPU).first == 90 + 1 - 16
