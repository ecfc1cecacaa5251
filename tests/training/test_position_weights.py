"""Weights of slots against their formulas, slot by slot."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.training.position_weights import decay_weights, default_gamma, dpace_weights


def test_decay_starts_at_one_and_skips_invalid_slots() -> None:
    valid = torch.tensor([[False, True, True, False, True]])
    expected = [0, 1, math.exp(-1 / 4), 0, math.exp(-3 / 4)]
    torch.testing.assert_close(decay_weights(valid, 4.0), torch.tensor([expected]))


def test_published_gammas() -> None:
    assert [default_gamma(b) for b in (8, 10, 16, 6)] == [4, 5, 7, 3]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.booleans()), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
)
def test_dpace_is_the_slope_of_the_expected_length(
    slots: list[tuple[float, bool]], alpha: float
) -> None:
    """w_k = d(expected length) / d(log s_k), by autograd on the definition."""
    q = torch.tensor([[p for p, _ in slots]], dtype=torch.float64)
    valid = torch.tensor([[v for _, v in slots]])
    log_s = (((1 - alpha) * q + alpha).log()).masked_fill(~valid, 0.0).requires_grad_()
    ((log_s.cumsum(-1).exp() * valid).sum()).backward()
    weights = dpace_weights(q.log(), valid, alpha)
    torch.testing.assert_close(weights, log_s.grad * valid, rtol=1e-6, atol=1e-9)
