"""The native rule against `accept_sampled` with the law it sees, written out in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.kernels import native
from blockdraft.kernels.native.accept import accept_rows, token_masses
from blockdraft.types import Verdict
from blockdraft.verification import accept_sampled

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
B, K, V, C = 60, 4, 300, 5
ISA = native.usable_isas()[-1] if native.available() else ""


def law_of(logits: Tensor, temperatures: list[float]) -> Tensor:
    """The native law of [b, r, v] logits, written out in float64."""
    b, width, v = logits.shape
    rows = [row for row in range(b * width) for _ in range(v)]
    ts = [temperatures[row // width] for row in rows]
    ids = torch.arange(v).repeat(b * width)
    return token_masses(logits.view(-1, v), rows, ts, ids, ISA).view(b, width, v)


def block() -> tuple[Tensor, list[float], dict[str, Any]]:
    """Logits of B sequences, their temperatures, and what else verification is told."""
    gen = torch.Generator().manual_seed(9)
    logits = 4.0 * torch.randn(B, K + 1, V, generator=gen)
    temperatures = (0.5 + torch.rand(B, generator=gen)).tolist()
    p = law_of(logits, temperatures)
    q_ids = (p[:, :K].float() + 0.02 * torch.rand(B, K, V, generator=gen)).topk(C).indices
    q_probs = torch.softmax(torch.randn(B, K, C, generator=gen), -1)
    slots = torch.randint(0, C, (B, K, 1), generator=gen)
    rest = {
        "draft_ids": q_ids.gather(-1, slots)[..., 0],
        "lens": [i % (K + 1) for i in range(B)],
        "q_ids": q_ids,
        "q_probs": q_probs,
        "u_accept": torch.rand(B, K, dtype=torch.float64, generator=gen) ** 2,
        "u_residual": torch.rand(B, dtype=torch.float64, generator=gen),
        "u_bonus": torch.rand(B, dtype=torch.float64, generator=gen),
    }
    return logits, temperatures, rest


def natively(
    logits: Tensor, temperatures: list[float], rest: dict[str, Any], index: Sequence[int] = range(B)
) -> Verdict:
    """Of the sequences `index` of a batch, whose drafts and uniforms `rest` holds."""
    some = {
        name: [x[i] for i in index] if isinstance(x, list) else None if x is None else x[index]
        for name, x in rest.items()
    }
    rows, ts = [i * (K + 1) for i in index], [temperatures[i] for i in index]
    accepted, next_ids = accept_rows(logits.view(-1, V), rows, ts, **some, isa=ISA)
    return Verdict(tuple(accepted), tuple(next_ids))


def test_equal_to_the_written_law() -> None:
    logits, temperatures, rest = block()
    expected = accept_sampled(p=law_of(logits, temperatures), **rest)
    assert natively(logits, temperatures, rest) == expected
    assert set(expected.accepted_len) == {0, 1, 2, 3, 4}  # every kind of row occurs
    without = {**rest, "q_ids": None, "q_probs": None}
    expected = accept_sampled(p=law_of(logits, temperatures), **without)
    assert natively(logits, temperatures, without) == expected


def test_masses_of_an_id_that_occurs_twice_add_up() -> None:
    logits, temperatures, rest = block()
    ids, q = rest["q_ids"], rest["q_probs"] / 2
    halves = {
        "q_ids": torch.cat([ids, ids.flip(-1)], -1),
        "q_probs": torch.cat([q, q.flip(-1)], -1),
    }
    expected = natively(logits, temperatures, rest)
    assert natively(logits, temperatures, {**rest, **halves}) == expected


def test_sequences_alone_equal_themselves_in_a_batch_on_any_number_of_threads() -> None:
    logits, temperatures, rest = block()
    together = natively(logits, temperatures, rest)
    alone = [natively(logits, temperatures, rest, [i]) for i in range(B)]
    assert together.next_ids == tuple(one.next_ids[0] for one in alone)
    assert together.accepted_len == tuple(one.accepted_len[0] for one in alone)
    native.set_num_threads(3)
    try:
        assert natively(logits, temperatures, rest) == together
    finally:
        native.set_num_threads(1)


def test_what_lies_behind_a_length_is_ignored() -> None:
    """Padding may hold ids that do not exist and rows that are NaN."""
    logits, temperatures, rest = block()
    behind = torch.arange(K) >= torch.tensor(rest["lens"])[:, None]
    padded = logits.clone()
    padded[:, 1:][behind] = float("nan")
    ignored = {
        **rest,
        "draft_ids": rest["draft_ids"].masked_fill(behind, -7),
        "q_ids": rest["q_ids"].masked_fill(behind[..., None], 10**6),
        "q_probs": rest["q_probs"].masked_fill(behind[..., None], float("nan")),
        "u_accept": rest["u_accept"].masked_fill(behind, float("nan")),
    }
    assert natively(padded, temperatures, ignored) == natively(logits, temperatures, rest)


def test_a_row_without_mass_is_an_error_and_never_a_token() -> None:
    logits, temperatures, rest = block()
    logits[1] = float("nan")
    with pytest.raises(ValueError, match="no probability mass"):
        natively(logits, temperatures, rest)


def test_an_impossible_draft_is_never_accepted() -> None:
    logits, temperatures, rest = block()
    logits[:, :K].scatter_(-1, rest["draft_ids"][..., None], float("-inf"))
    verdict = natively(logits, temperatures, {**rest, "u_accept": 0.0 * rest["u_accept"]})
    assert verdict.accepted_len == (0,) * B
    drafted = zip(rest["lens"], rest["draft_ids"][:, 0].tolist(), verdict.next_ids, strict=True)
    assert all(said != draft for length, draft, said in drafted if length)


def test_a_draft_that_q_cannot_draw_is_an_error() -> None:
    logits, temperatures, rest = block()
    with pytest.raises(ValueError, match="no probability under the q"):
        natively(logits, temperatures, {**rest, "draft_ids": 0 * rest["draft_ids"] + V - 1})


def test_half_a_q_and_wrong_shapes_are_refused() -> None:
    logits, temperatures, rest = block()
    wrong = {"q_ids": None, "lens": [0] * (B - 1), "u_accept": torch.zeros(1, K).double()}
    for name, value in wrong.items():
        with pytest.raises((ConfigError, TypeCheckError, IndexError)):
            accept_rows(logits.view(-1, V), [0] * B, temperatures, **{**rest, name: value}, isa=ISA)
