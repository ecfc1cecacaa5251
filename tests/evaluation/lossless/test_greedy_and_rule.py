"""Greedy equality with the first difference located, and the rule at its thresholds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from blockdraft.decoding import choose_tokens
from blockdraft.evaluation.lossless.greedy import check_greedy, locate
from blockdraft.evaluation.lossless.rounding import is_bit_exact, must_be_equal, tie_bound
from blockdraft.evaluation.lossless.rule import check_rule
from blockdraft.types import Cycle, Verdict
from blockdraft.verification import accept_greedy
from tests.evaluation.lossless.faulty import (
    VISIBLE,
    accepts_at_equality,
    does_not_normalise,
    llm_of,
    point,
)
from tests.fakes.codec import make_llm
from tests.fakes.models import tiny_target
from tests.fakes.oracle import random_prompts, scripted
from tests.fakes.scripted import accept_first

PROMPTS = [("a", [3, 1, 1]), ("b", [2, 5]), ("c", [7, 0, 4])]


def accepts_a_second_draft(drafts: torch.Tensor, lens: Any, targets: torch.Tensor) -> Verdict:
    """Takes one draft more than is right where there is one."""
    verdict = accept_greedy(drafts, lens, targets)
    more = tuple(min(a + 1, n) for a, n in zip(verdict.accepted_len, lens, strict=True))
    next_ids = tuple(int(targets[i, a]) for i, a in enumerate(more))
    return Verdict(more, next_ids)


def test_right_engines_say_the_same() -> None:
    target = tiny_target()
    prompts = random_prompts([5, 9, 3])
    drafter = scripted(target, prompts, accept_first(2))
    found = check_greedy(
        make_llm(target, drafter),
        make_llm(target, drafter),
        [(str(i), ids) for i, ids in enumerate(prompts)],
        24,
    )
    assert (found.num_faults, found.divergences, found.num_prompts) == (0, (), 3)
    assert found.accepted > 20
    assert (found.dtype, found.is_bit_exact) == ("float32", False)


def test_a_fault_is_located_and_is_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_tokens, "accept_greedy", accepts_a_second_draft)
    llm = llm_of(point())
    found = check_greedy(llm, llm, PROMPTS, 20)
    assert found.num_faults == len(found.divergences) > 0
    first = found.divergences[0]
    assert first.is_draft
    assert not first.is_tie
    assert first.gap > first.bound > 0.0
    assert first.cycle >= 1
    assert first.plain_id == first.top_ids[0] != first.drafted_id


def test_a_difference_at_a_tie_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two best logits a hair apart, and a pass that turns them round: rounding could do that."""
    llm = llm_of(point())
    target: Any = llm.target
    best = target.logits.topk(2, dim=-1)
    target.logits.scatter_(-1, best.indices[..., 1:], best.values[..., :1] - 1e-6)
    forward = target.forward

    def turned(cache: Any, batch: Any) -> Any:
        out = forward(cache, batch)
        if batch.input_ids.shape[1] == 1 or batch.logits_for != "all":
            return out
        values, ids = out.logits.topk(2, dim=-1)
        return dataclasses.replace(out, logits=out.logits.scatter(-1, ids, values.flip(-1)))

    monkeypatch.setattr(target, "forward", turned)
    found = check_greedy(llm, llm, PROMPTS, 6)
    assert found.divergences
    assert {d.is_tie for d in found.divergences} == {True}
    assert all(d.drafted_id == d.top_ids[1] for d in found.divergences)
    assert found.num_faults == 0


def test_which_cycle_said_a_token() -> None:
    llm = llm_of(point())
    [row] = llm.rows([[2, 5]])
    row.cycles = []
    assert locate(row, 0) == (0, 0, False)
    row.cycles = [Cycle(3, 2, (4, 5, 6)), Cycle(3, 0, (7,))]
    assert [locate(row, i) for i in range(1, 5)] == [
        (1, 0, True),
        (1, 1, True),
        (1, 2, False),
        (2, 0, False),
    ]


def test_rounding_is_bounded_by_the_dtype() -> None:
    llm = llm_of(point())
    assert (is_bit_exact(llm), must_be_equal(llm)) == (False, True)
    assert tie_bound(llm, 16.0) == pytest.approx(16 * 2**-16)
    llm.target.info = dataclasses.replace(llm.target.info, dtype=torch.bfloat16)
    assert tie_bound(llm, -20.0) == pytest.approx(20 / 32)
    assert not must_be_equal(llm)
    llm.loaded = dataclasses.replace(llm.loaded, kernels="native-avx512")
    assert (is_bit_exact(llm), tie_bound(llm, 20.0)) == (True, 0.0)
    assert must_be_equal(llm)


def test_the_rule_is_right_at_its_thresholds() -> None:
    found = check_rule()
    assert found.faults == ()
    assert found.num_decisions > 200


@pytest.mark.parametrize(
    "rule", [accepts_at_equality, *VISIBLE[:3]], ids=lambda rule: rule.__name__
)
def test_wrong_rules_are_named(rule: Any) -> None:
    assert check_rule(rule).faults


def test_equality_is_told_from_other_mistakes() -> None:
    faults = check_rule(accepts_at_equality).faults
    assert faults
    assert all(fault.startswith("accepts p=") for fault in faults)
    assert any("p=0.0" in fault and "coin 0.0" in fault for fault in faults)
    assert all("after a refusal" in fault for fault in check_rule(does_not_normalise).faults)
