"""Inverse-CDF draws: the law, the ends of the uniform, and agreement with verification's draw."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.sampling import draw, probabilities
from blockdraft.types import SamplingParams
from blockdraft.verification import accept_sampled

LAST = 1.0 - 2.0**-53


def test_intervals_have_the_length_of_the_probability() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.125, 0.375, 0.0]])
    u = torch.tensor([0.0, 0.25, 0.4999999, 0.5, 0.6249999, 0.625, 0.9, LAST], dtype=torch.float64)
    assert draw(probs.expand(len(u), -1), u).tolist() == [1, 1, 1, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("vocab", [5, 300, 4097])
def test_equal_to_a_plain_search(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    probs = torch.softmax(3.0 * torch.randn(1, vocab, generator=generator), -1)
    u = torch.rand(2000, dtype=torch.float64, generator=generator)
    cumulative = probs[0].double().cumsum(0)
    expected = torch.searchsorted(cumulative, u * cumulative[-1], right=True)
    assert torch.equal(draw(probs.expand(2000, -1), u), expected)


@settings(deadline=None, max_examples=100)
@given(
    weights=st.lists(
        st.sampled_from([0.0, 0.0, 1e-38, 1e-20, 0.3, 1.0]) | st.floats(0.0, 1.0, width=32),
        min_size=1,
        max_size=700,
    ).filter(any),
    u=st.sampled_from([0.0, 2.0**-53, 0.5, LAST]) | st.floats(0.0, LAST),
)
def test_an_impossible_id_is_never_drawn(weights: list[float], u: float) -> None:
    probs = torch.tensor([weights])
    token_id = int(draw(probs, torch.tensor([u], dtype=torch.float64)))
    assert weights[token_id] > 0.0


@pytest.mark.parametrize("u", [0.0, LAST])
def test_the_ends_stay_inside_a_small_support(u: float) -> None:
    """Support in the middle of groups, rows of every total: u is never the total itself."""
    for scale in (1.0, 0.9999999, 1.0000001, 3.0, 1e-30):
        probs = torch.zeros(1, 49_152)
        probs[0, 100], probs[0, 20_001] = 0.3 * scale, 0.7 * scale
        expected = 100 if u == 0.0 else 20_001
        assert int(draw(probs, torch.tensor([u], dtype=torch.float64))) == expected


def test_the_law_of_many_draws() -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0))
    probs = probabilities(logits, [SamplingParams(temperature=1.0)])
    u = torch.arange(100_000, dtype=torch.float64) / 100_000
    counts = torch.bincount(draw(probs.expand(100_000, -1), u), minlength=12)
    torch.testing.assert_close(counts / 100_000, probs[0], rtol=0.0, atol=2e-5)


def test_verification_draws_the_same_token() -> None:
    """Plain decoding through either function says the same with the same uniform."""
    generator = torch.Generator().manual_seed(4)
    for vocab in (6, 1000):
        probs = torch.softmax(4.0 * torch.randn(500, vocab, generator=generator), -1)
        u = torch.rand(500, dtype=torch.float64, generator=generator)
        u[0], u[1] = 0.0, LAST
        empty = torch.zeros(500, 0)
        verdict = accept_sampled(
            empty.long(), [0] * 500, probs[:, None], None, None, empty.double(), u, u
        )
        assert verdict.next_ids == tuple(draw(probs, u).tolist())


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_a_row_without_mass_is_an_error(bad: float) -> None:
    probs = torch.full((2, 10), 0.1)
    probs[1] = bad
    with pytest.raises(ValueError, match="no probability mass"):
        draw(probs, torch.zeros(2, dtype=torch.float64))


def test_no_rows_give_no_draws() -> None:
    none = torch.zeros(0, 10)
    assert probabilities(none, []).shape == (0, 10)
    assert draw(none, torch.zeros(0, dtype=torch.float64)).tolist() == []
