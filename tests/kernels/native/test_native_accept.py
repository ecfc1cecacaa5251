"""Masses, and tokens drawn out of logits, against softmax in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from blockdraft.errors import ConfigError, UserError
from blockdraft.kernels import native
from blockdraft.kernels.native.accept import accept_rows, nonfinite_rows, token_masses
from blockdraft.sampling import warp

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
LAST = 1.0 - 2.0**-53
FINITE = (1, 15, 63, 64, 65, 300, 4097, 49_152, 151_936)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logits_of(n: int, v: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(n, v, generator=torch.Generator().manual_seed(seed))


def law_of(row: Tensor, temperature: float, isa: str) -> Tensor:
    """Every id's mass in one row of logits [v]."""
    v = len(row)
    return token_masses(row[None], [0] * v, [temperature] * v, torch.arange(v), isa)


def draw(logits: Tensor, u: Tensor, isa: str, temperature: float = 1.0) -> Tensor:
    """Plain decoding from row 0 of `logits`, once for each uniform."""
    n, none = len(u), torch.zeros(len(u), 0)
    accepted, next_ids = accept_rows(
        logits,
        [0] * n,
        [temperature] * n,
        none.long(),
        [0] * n,
        None,
        None,
        none.double(),
        0.0 * u,
        u,
        isa,
    )
    assert accepted == [0] * n
    return torch.tensor(next_ids, dtype=torch.long)


def refuse(row: Tensor, u: Tensor, isa: str, ids: Tensor, q: Tensor) -> Tensor:
    """What is said after draft ids[0] with q on `ids`, where the coin refuses it: max(p - q, 0)."""
    n = len(u)
    accepted, next_ids = accept_rows(
        torch.stack([row, row]),
        [0] * n,
        [1.0] * n,
        ids[:1].repeat(n, 1),
        [1] * n,
        ids.repeat(n, 1, 1),
        q.float().repeat(n, 1, 1),
        torch.full((n, 1), LAST, dtype=torch.float64),
        u,
        0.0 * u,
        isa,
    )
    assert accepted == [0] * n
    return torch.tensor(next_ids)


@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 4.0])
@pytest.mark.parametrize("v", [1, 63, 300, 1100])
def test_masses_are_those_of_float64(isa: str, v: int, temperature: float) -> None:
    """Each to a few float32 roundings of its exponent; all of them sum to 1."""
    row = logits_of(1, v)[0]
    law = law_of(row, temperature, isa)
    exact = torch.softmax(row.double() / temperature, -1)
    size = (row.max() - row).double() / temperature
    assert bool(((law - exact).abs() <= exact * (1e-6 + 2.4e-7 * size) + 1e-37).all())
    assert float((law - exact).abs().sum() / 2) < 2e-6
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("v", FINITE)
def test_draws_follow_the_masses(isa: str, v: int) -> None:
    """A draw is the first id whose cumulative mass exceeds the uniform."""
    logits = logits_of(3, v, seed=v)[1:2]
    gen = torch.Generator().manual_seed(v)
    u = torch.cat([double(0.0, LAST), torch.rand(40, dtype=torch.float64, generator=gen)])
    law = law_of(logits[0], 0.8, isa) if v < 5000 else torch.softmax(logits[0].double() / 0.8, -1)
    cumulative = law.cumsum(0)
    expected = torch.searchsorted(cumulative, u * cumulative[-1], right=True)
    drawn = draw(logits, u, isa, 0.8)
    off = (drawn - expected).abs()
    if v < 5000:
        assert int(off.max()) == 0
    near = (cumulative[expected] - u * cumulative[-1]).abs() < 1e-5
    near |= (u * cumulative[-1] - cumulative[(expected - 1).clamp(min=0)]).abs() < 1e-5
    assert bool(((off == 0) | near).all())  # the law agrees to float32 rounding


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([float("-inf"), -1e30, -200.0, 0.0, 5.0]) | st.floats(-90, 90, width=32),
        min_size=1,
        max_size=200,
    ).filter(lambda values: max(values) > float("-inf")),
    u=st.sampled_from([0.0, 2.0**-53, 0.5, LAST]) | st.floats(0.0, LAST),
    temperature=st.sampled_from([1e-5, 0.5, 1.0, 30.0]),
)
def test_an_impossible_id_is_never_drawn(values: list[float], u: float, temperature: float) -> None:
    for isa in native.usable_isas():
        logits = torch.tensor([values])
        token_id = int(draw(logits, double(u), isa, temperature))
        assert float(law_of(logits[0], temperature, isa)[token_id]) > 0.0


def test_after_a_refusal_only_what_q_leaves_is_drawn(isa: str) -> None:
    """An id whose q is p or more never comes, the others in proportion to p - q."""
    row = logits_of(1, 9)[0]
    law, q = law_of(row, 1.0, isa), torch.softmax(logits_of(1, 9, seed=1)[0], -1).double()
    left = (law - q).clamp(min=0.0)
    ids = (law - q).argsort()  # the draft, first, is one that a coin refuses
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    counts = torch.bincount(refuse(row, u, isa, ids, q[ids]), minlength=9)
    torch.testing.assert_close(counts / 20_000, (left / left.sum()).float(), rtol=0.0, atol=1e-4)
    assert not bool(counts[left == 0.0].any())


def test_where_nothing_is_left_p_is_drawn_from(isa: str) -> None:
    row = logits_of(1, 70)[0]
    u = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    more = 1.001 * law_of(row, 1.0, isa)
    assert torch.equal(refuse(row, u, isa, torch.arange(70), more), draw(row[None], u, isa))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("at", [0, 66, 99])
def test_rows_without_a_token_are_errors_and_others_do_not_notice(
    isa: str, bad: float | None, at: int
) -> None:
    logits, u = logits_of(2, 100), double(0.3)
    before = draw(logits, u, isa)
    if bad is None:
        logits[1] = float("-inf")
    else:
        logits[1, at] = bad
    assert torch.equal(draw(logits, u, isa), before)
    with pytest.raises(ValueError, match="no probability mass"):
        draw(logits[1:], u, isa)
    with pytest.raises(ValueError, match="no probability mass"):
        token_masses(logits, [1], [1.0], torch.tensor([0]), isa)


def test_no_rows_give_no_draws(isa: str) -> None:
    assert draw(logits_of(1, 5), double(), isa).tolist() == []


def test_arguments_out_of_range_are_refused(isa: str) -> None:
    logits, zero = logits_of(2, 5), torch.tensor([0])
    for token_id, temperature in ((5, 1.0), (-1, 1.0), (0, 0.0), (0, float("nan"))):
        with pytest.raises(UserError, match="out of range"):
            token_masses(logits, [0], [temperature], zero + token_id, isa)
    for u in (1.0, -0.5, float("nan")):
        with pytest.raises(UserError, match="out of range"):
            draw(logits, double(u), isa)
    for token_id in (-1, 5):
        with pytest.raises(UserError, match="out of range"):
            refuse(logits[0], double(0.5), isa, torch.tensor([0, token_id]), double(0.5, 0.5))
    for rows in ([2], [-1]):
        with pytest.raises(ConfigError, match="there are 2"):
            token_masses(logits, rows, [1.0], zero, isa)
    for wrong in (logits.double(), logits.t()):
        with pytest.raises((ConfigError, TypeCheckError), match=r"must be|Type-check"):
            token_masses(wrong, [0], [1.0], zero, isa)
    with pytest.raises(ConfigError, match="2 temperatures"):
        token_masses(logits, [0], [1.0, 1.0], zero, isa)


@pytest.mark.parametrize("v", [1, 17, 500])
def test_nonfinite_rows_are_those_of_the_reference(isa: str, v: int) -> None:
    logits = logits_of(7, v)
    for row, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        logits[2 * row, v // 2] = value
    logits[6] = float("-inf")
    assert nonfinite_rows(logits, isa) == warp.nonfinite_rows(logits)
