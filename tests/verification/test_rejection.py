"""Rejection sampling at its edges; its law is proved in tests/exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import Tensor

from blockdraft.sampling import probabilities
from blockdraft.types import SamplingParams, Verdict
from blockdraft.verification import accept_greedy, accept_sampled

LAST = 1.0 - 2.0**-53


def full(*shape: int, value: float) -> Tensor:
    return torch.full(shape, value, dtype=torch.float64)


def one_slot(
    p: list[float], q: list[float], draft: int, coin: float, u: float = 0.5
) -> tuple[bool, int]:
    """Whether one draft stands, and the token said in its place or behind it."""
    law = torch.tensor(p)
    verdict = accept_sampled(
        torch.tensor([[draft]]),
        [1],
        torch.stack([law, law])[None],
        torch.arange(len(q))[None, None],
        torch.tensor(q)[None, None],
        full(1, 1, value=coin),
        full(1, value=u),
        full(1, value=u),
    )
    return verdict.accepted_len == (1,), verdict.next_ids[0]


def test_the_acceptance_threshold_is_p_over_q() -> None:
    p, q = [0.25, 0.75], [0.5, 0.5]
    assert one_slot(p, q, draft=0, coin=0.4999) == (True, 1)
    assert one_slot(p, q, draft=0, coin=0.5) == (False, 1)  # strict: 0.5 * 0.5 is not below 0.25
    assert one_slot(p, q, draft=1, coin=LAST)[0]


@pytest.mark.parametrize("coin", [0.0, LAST])
def test_an_impossible_token_is_never_accepted(coin: float) -> None:
    """BC-13, BC-17: cut by top-k or min-p, proposed with q > 0."""
    for params in (
        SamplingParams(temperature=1.0, top_k=2),
        SamplingParams(temperature=1.0, min_p=0.3),
    ):
        p = probabilities(torch.tensor([[3.0, 0.0, 2.5]]), [params])[0].tolist()
        assert p[1] == 0.0
        for u in (0.0, 0.5, LAST):
            stands, token_id = one_slot(p, [0.2, 0.6, 0.2], draft=1, coin=coin, u=u)
            assert not stands
            assert token_id != 1


@settings(deadline=None, max_examples=200)
@given(q=st.floats(2.0**-100, 1.0, width=32), above=st.integers(0, 3))
def test_a_token_with_p_at_least_q_always_stands(q: float, above: int) -> None:
    """BC-13: with the largest coin below 1 and p = q, or a few ulps above it."""
    p = torch.tensor(q)
    for _ in range(above):
        p = torch.nextafter(p, torch.tensor(2.0))
    assert one_slot([float(p), 1.0], [q, 0.0], draft=0, coin=LAST)[0]


@pytest.mark.parametrize("u", [0.0, 0.3, LAST])
def test_p_next_to_q_gives_a_token_of_p(u: float) -> None:
    """BC-14: p and q 1 ulp apart either way: no NaN, no empty residual, no impossible token."""
    q = torch.softmax(torch.tensor([1.0, 0.3, -2.0, 0.8]), 0)
    for towards in (0.0, 1.0):
        p = torch.nextafter(q, torch.tensor(towards))
        for draft in range(4):
            stands, token_id = one_slot(p.tolist(), q.tolist(), draft, coin=LAST, u=u)
            assert 0 <= token_id < 4
            assert stands or towards == 0.0


def test_an_empty_residual_draws_from_p() -> None:
    """BC-14: q is above p everywhere (rounding), so a rejection leaves nothing: p is used."""
    p, q = [0.49999, 0.49999, 0.0], [0.5, 0.5, 0.0]
    assert one_slot(p, q, draft=0, coin=LAST, u=0.2) == (False, 0)
    assert one_slot(p, q, draft=0, coin=LAST, u=0.7) == (False, 1)


@pytest.mark.parametrize("coin", [0.0, 0.5, LAST])
@pytest.mark.parametrize("u", [0.0, 0.5, LAST])
def test_a_one_hot_p_is_the_greedy_rule(coin: float, u: float) -> None:
    """BC-14, BC-15: temperature 0 is one-hot, whatever q and the uniforms are."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 4, 6, generator=generator)
    drafts = torch.randint(0, 6, (60, 3), generator=generator)
    drafts[:20] = logits[:20, :3].argmax(-1)
    lens = [i % 4 for i in range(60)]
    p = probabilities(logits.flatten(0, 1), [SamplingParams()] * 240).view(60, 4, 6)
    q = torch.softmax(torch.randn(60, 3, 6, generator=generator), -1)
    q_ids = torch.arange(6).expand(60, 3, -1)
    u_last = full(60, value=u)
    expected = accept_greedy(drafts, lens, logits.argmax(-1))
    coins = full(60, 3, value=coin)
    assert accept_sampled(drafts, lens, p, q_ids, q, coins, u_last, u_last) == expected
    assert accept_sampled(drafts, lens, p, None, None, coins, u_last, u_last) == expected


def random_block(b: int = 40, k: int = 4, v: int = 300, c: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(9)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    p = torch.softmax(4.0 * torch.randn(b, k + 1, v, generator=generator), -1)
    q_ids = (p[:, :k] + 0.02 * torch.rand(b, k, v, generator=generator)).topk(c).indices
    q_probs = torch.softmax(torch.randn(b, k, c, generator=generator), -1)
    slots = torch.randint(0, c, (b, k, 1), generator=generator)
    return {
        "draft_ids": q_ids.gather(-1, slots)[..., 0],
        "lens": [i % (k + 1) for i in range(b)],
        "p": p,
        "q_ids": q_ids,
        "q_probs": q_probs,
        "u_accept": uniform(b, k) ** 2,
        "u_residual": uniform(b),
        "u_bonus": uniform(b),
    }


def pick(block: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    return {
        name: [value[i] for i in rows] if isinstance(value, list) else value[rows]
        for name, value in block.items()
    }


def test_a_batch_equals_its_rows_alone() -> None:
    block = random_block()
    together = accept_sampled(**block)
    alone = [accept_sampled(**pick(block, [i])) for i in range(len(block["lens"]))]
    assert together == Verdict(
        tuple(v.accepted_len[0] for v in alone), tuple(v.next_ids[0] for v in alone)
    )
    assert set(together.accepted_len) == {0, 1, 2, 3, 4}  # every kind of row occurs


def test_a_sparse_q_equals_the_same_q_in_full() -> None:
    block = random_block()
    dense = torch.zeros(40, 4, 300).scatter_(-1, block["q_ids"], block["q_probs"])
    full_q = {**block, "q_ids": torch.arange(300).expand(40, 4, -1), "q_probs": dense}
    assert accept_sampled(**full_q) == accept_sampled(**block)


def test_a_missing_q_is_a_point_mass() -> None:
    block = random_block()
    one_hot = {**block, "q_ids": block["draft_ids"][..., None], "q_probs": torch.ones(40, 4, 1)}
    assert accept_sampled(**{**block, "q_ids": None, "q_probs": None}) == accept_sampled(**one_hot)


def test_masses_of_an_id_that_occurs_twice_add_up() -> None:
    block = random_block()
    halves = {
        **block,
        "q_ids": torch.cat([block["q_ids"], block["q_ids"].flip(-1)], -1),
        "q_probs": torch.cat([block["q_probs"] / 2, block["q_probs"].flip(-1) / 2], -1),
    }
    assert accept_sampled(**halves) == accept_sampled(**block)


def test_what_lies_behind_a_length_is_ignored() -> None:
    """Padding may hold ids that do not exist and rows that are NaN."""
    block = random_block()
    behind = torch.arange(4) >= torch.tensor(block["lens"])[:, None]
    p = block["p"].clone()
    p[:, 1:][behind] = float("nan")
    padded = {
        **block,
        "p": p,
        "draft_ids": block["draft_ids"].masked_fill(behind, -7),
        "q_ids": block["q_ids"].masked_fill(behind[..., None], 10**6),
        "q_probs": block["q_probs"].masked_fill(behind[..., None], float("nan")),
        "u_accept": block["u_accept"].masked_fill(behind, float("nan")),
    }
    assert accept_sampled(**padded) == accept_sampled(**block)


def test_nothing_is_changed_in_place() -> None:
    block = random_block()
    before = {name: value.clone() for name, value in block.items() if isinstance(value, Tensor)}
    accept_sampled(**block)
    assert all(torch.equal(block[name], value) for name, value in before.items())


def test_a_block_without_drafts_draws_the_bonus() -> None:
    block = pick(random_block(k=1), [0, 1])
    none = {name: block[name][:, :0] for name in ("draft_ids", "q_ids", "q_probs", "u_accept")}
    verdict = accept_sampled(**{**block, **none, "lens": [0, 0], "p": block["p"][:, :1]})
    first = accept_sampled(**{**block, "lens": [0, 0]})
    assert verdict == first
    assert verdict.accepted_len == (0, 0)


def test_a_batch_without_rows() -> None:
    assert accept_sampled(**pick(random_block(), [])) == Verdict((), ())


def test_a_draft_that_q_cannot_draw_is_an_error() -> None:
    block = random_block()
    with pytest.raises(ValueError, match="no probability under the q"):
        accept_sampled(**{**block, "draft_ids": block["draft_ids"] * 0 + 299})


@pytest.mark.parametrize("bad", [float("nan"), 0.0])
def test_a_law_without_mass_is_an_error_and_never_a_token(bad: float) -> None:
    """BC-23."""
    block = pick(random_block(), [0, 1, 2])
    p = block["p"].clone()
    p[1] = bad
    with pytest.raises(ValueError, match="no probability mass"):
        accept_sampled(**{**block, "p": p})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lens", [5] * 40),
        ("lens", [-1] * 40),
        ("lens", [0] * 39),
        ("p", torch.zeros(40, 4, 300)),
        ("q_ids", None),
        ("q_ids", torch.zeros(40, 4, 6, dtype=torch.long)),
        ("q_probs", torch.zeros(40, 3, 5)),
        ("u_accept", torch.zeros(1, 4)),  # would be shared by all rows
        ("u_residual", torch.zeros(1)),
        ("u_bonus", torch.zeros(1)),
    ],
)
def test_disagreeing_shapes_are_errors(name: str, value: Any) -> None:
    refused = (ValueError, TypeCheckError)  # the second where annotations are checked
    with pytest.raises(refused, match=r"length|shape|together|Type-check"):
        accept_sampled(**{**random_block(), name: value})
