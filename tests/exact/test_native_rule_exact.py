"""Exactness of the native rule: enumerated, with mistakes, and through the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.kernels import native
from blockdraft.kernels.native.accept import accept_rows, token_masses
from blockdraft.targets.base import PassOutput, RowBatch
from blockdraft.types import SamplingParams, Verdict
from tests.exact import test_loop_law as loop
from tests.exact.enumeration import Case, Rule, output_law, target_law
from tests.exact.test_mutations import emits_only_possible_tokens
from tests.exact.toys import ToyTarget, lookup_drafter, slot_drafter, walk_drafter
from tests.fakes.scripted import TableCache, TableTarget

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels cannot be built")
VOCAB, TEMPERATURE = 4, 0.7
ISA = native.usable_isas()[-1] if native.available() else ""
PLAIN = SamplingParams(temperature=1.0)
STARTS = ((0, 2), (1, 3))


def logits_table() -> Tensor:
    """Float32 logits after each two of VOCAB tokens, one of them impossible."""
    table = 1.5 * torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(8))
    table[0, 2, 1] = float("-inf")
    return table.view(-1, VOCAB)


def toy() -> ToyTarget:
    """A target whose laws are what the kernels make of the table, in float64."""
    n = VOCAB**2
    masses = token_masses(
        logits_table(),
        [row for row in range(n) for _ in range(VOCAB)],
        [TEMPERATURE] * (n * VOCAB),
        torch.arange(VOCAB).repeat(n),
        ISA,
    )
    return ToyTarget(masses.view(VOCAB, VOCAB, VOCAB))


def judge(logits: Tensor, lens: Sequence[int], drafted: Sequence[Any], *u: Tensor) -> Verdict:
    """The native rule on logits [b, k + 1, v], at `TEMPERATURE`."""
    b, width, v = logits.shape
    rows = list(range(0, b * width, width))
    ids, q_ids, q_probs = drafted
    q_probs = None if q_probs is None else q_probs.float()
    accepted, next_ids = accept_rows(
        logits.reshape(-1, v), rows, [TEMPERATURE] * b, ids, lens, q_ids, q_probs, *u, ISA
    )
    return Verdict(tuple(accepted), tuple(next_ids))


def logits_behind(p: Tensor) -> Tensor:
    """The logits that written laws come from."""
    laws = toy().laws.view(-1, VOCAB)
    context = (p[..., None, :] == laws).all(-1).long().argmax(-1)
    assert torch.equal(laws[context], p)
    return logits_table()[context]


def is_right(
    ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    return judge(logits_behind(p), lens, (ids, q_ids, q_probs), *u)


def accepts_too_often(
    ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """A coin that falls a third short."""
    return is_right(ids, lens, p, q_ids, q_probs, u[0] / 1.5, *u[1:])


def keeps_q_in_the_residual(
    ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """After a refusal, draws from p itself."""
    verdict = is_right(ids, lens, p, q_ids, q_probs, *u)
    accepted, none = torch.tensor(verdict.accepted_len), ids[:, :0]
    last = torch.where(accepted < torch.tensor(lens), u[1], u[2])
    at = p[torch.arange(len(p)), accepted][:, None]
    plain = is_right(none, [0] * len(p), at, None, None, none.double(), last, last)
    return Verdict(verdict.accepted_len, plain.next_ids)


def draws_the_bonus_one_row_early(
    ids: Tensor, lens: Sequence[int], p: Tensor, *rest: Any
) -> Verdict:
    """Reads the row of the last draft where the row behind it is meant."""
    p = p.clone()
    p[torch.arange(len(p)), torch.tensor(lens)] = p[torch.arange(len(p)), torch.tensor(lens) - 1]
    return is_right(ids, lens, p, *rest)


def distance(rule: Rule, drafter: Any = None) -> float:
    drafter = drafter or slot_drafter(VOCAB, 2, PLAIN)
    case = Case(toy(), drafter, rule)
    num_tokens = drafter.num_draft_tokens + 1
    lens = (drafter.num_draft_tokens,)
    gaps = [
        output_law(case, start, lens, num_tokens) - target_law(case.target, start, num_tokens)
        for start in STARTS
    ]
    return max(float(gap.abs().sum() / 2) for gap in gaps)


def test_every_branch_has_the_law_of_the_target() -> None:
    assert distance(is_right) < 1e-12
    assert distance(is_right, lookup_drafter(VOCAB, 2)) < 1e-12
    assert distance(is_right, walk_drafter(VOCAB, 2, candidates=3, temperature=1.0)) < 1e-12


def test_that_law_is_softmax_to_float32_rounding() -> None:
    exact = torch.softmax(logits_table().double() / TEMPERATURE, -1)
    assert float((toy().laws.view(-1, VOCAB) - exact).abs().sum(-1).max() / 2) < 1e-6


@pytest.mark.parametrize(
    "rule", [accepts_too_often, keeps_q_in_the_residual, draws_the_bonus_one_row_early]
)
def test_a_wrong_rule_is_caught(rule: Rule) -> None:
    assert distance(rule) > 0.01


def test_impossible_tokens_are_never_said() -> None:
    """BC-13 at the ends of every uniform."""

    def rule(
        ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
    ) -> Verdict:
        return judge(p.log().float() * TEMPERATURE, lens, (ids, q_ids, q_probs), *u)

    assert emits_only_possible_tokens(rule)


class NativeTable(TableTarget):
    """A table whose logits the kernels draw from."""

    def forward(self, cache: TableCache, batch: RowBatch) -> PassOutput:  # type: ignore[override]
        output = super().forward(cache, batch)
        return PassOutput(output.logits, None, isa=ISA)


@pytest.mark.parametrize("maker", loop.MAKERS)
def test_outputs_have_the_law_of_the_target(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BC-10 through the loop; nothing is written out."""
    monkeypatch.setattr("blockdraft.decoding.choose_tokens.probabilities", None)
    rows = loop.run(NativeTable(loop.table()), loop.MAKERS[maker](), loop.PLAIN, 2500)
    assert loop.worst(rows, loop.PLAIN) > loop.SURE


def test_rows_of_every_kind_side_by_side_say_what_they_say_alone() -> None:
    from tests.decoding.loops import begun, row_of

    kinds = [
        SamplingParams(max_tokens=12, temperature=1.0, seed=1),
        SamplingParams(max_tokens=12, seed=2),
        SamplingParams(max_tokens=12, temperature=0.8, top_p=0.7, seed=3),
        SamplingParams(max_tokens=12, temperature=0.6, top_k=VOCAB**2, seed=4),
        SamplingParams(max_tokens=12, temperature=1.4, frequency_penalty=0.5, seed=5),
    ]

    def answers(params: Sequence[SamplingParams]) -> list[list[int]]:
        from blockdraft.decoding.step import cycle

        rows = [row_of(loop.PROMPT, one) for one in params]
        state = begun(NativeTable(loop.table()), loop.sparse(), rows)
        while state.rows:
            state.remove_finished()
            if state.rows:
                cycle(state)
        return [row.token_ids for row in rows]

    assert answers(kinds) == [answers([one])[0] for one in kinds]


def test_broken_logits_end_their_request_alone() -> None:
    table = loop.table()
    table[3] = float("nan")
    rows = loop.run(NativeTable(table), loop.sparse(), loop.PLAIN, 60)
    failed = [row for row in rows if row.finish_reason == "error"]
    assert 0 < len(failed) < len(rows)
    assert all("non-finite logits" in str(row.error) for row in failed)
