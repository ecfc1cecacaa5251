"""The enumeration finds the mistakes that have been made with such rules elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blockdraft.types import SamplingParams, Verdict
from blockdraft.verification import accept_sampled
from tests.exact.enumeration import Case, Rule, Sharing, output_law, target_law
from tests.exact.toys import ToyTarget, slot_drafter, walk_drafter

VOCAB = 4
STARTS = ((0, 2), (1, 3), (2, 0), (3, 1))
PLAIN = SamplingParams(temperature=1.0)
WARPED = SamplingParams(temperature=1.5, top_k=3, top_p=0.9)
LARGEST_COIN = 1.0 - 2.0**-53


def distance(case: Case, length: int = 2) -> float:
    """Total variation between what one block says and what the target says, at the worst start."""
    num_tokens = case.drafter.num_draft_tokens + 1
    gaps = [
        output_law(case, start, (length,), num_tokens) - target_law(case.target, start, num_tokens)
        for start in STARTS
    ]
    return max(float(gap.abs().sum() / 2) for gap in gaps)


def base(drafter_params: SamplingParams = PLAIN) -> Case:
    return Case(ToyTarget.random(VOCAB, WARPED), slot_drafter(VOCAB, 2, drafter_params))


def believes_everything(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Tensor, q_probs: Tensor, *u: Tensor
) -> Verdict:
    """Keeps all drafts, and draws the token behind them rightly."""
    empty = draft_ids[:, :0]
    last = p[torch.arange(len(p)), torch.tensor(lens)][:, None]
    next_ids = accept_sampled(
        empty, [0] * len(p), last, None, None, empty.double(), u[2], u[2]
    ).next_ids
    return Verdict(tuple(lens), next_ids)


def keeps_q_in_the_residual(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Tensor, q_probs: Tensor, *u: Tensor
) -> Verdict:
    """Draws the token after a rejection from p itself."""
    coins, u_residual, u_bonus = u
    verdict = accept_sampled(draft_ids, lens, p, q_ids, q_probs, coins, u_residual, u_bonus)
    accepted = torch.tensor(verdict.accepted_len)
    u_last = torch.where(accepted < torch.tensor(lens), u_residual, u_bonus)
    last = p[torch.arange(len(p)), accepted][:, None]
    empty = draft_ids[:, :0]
    plain = accept_sampled(empty, [0] * len(p), last, None, None, empty.double(), u_last, u_last)
    return Verdict(verdict.accepted_len, plain.next_ids)


def draws_the_bonus_one_row_early(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, *rest: Tensor
) -> Verdict:
    """Reads the row of the last draft where the row behind it is meant."""
    p = p.clone()
    p[torch.arange(len(p)), torch.tensor(lens)] = p[torch.arange(len(p)), torch.tensor(lens) - 1]
    return accept_sampled(draft_ids, lens, p, *rest)


def accepts_at_equality(
    draft_ids: Tensor,
    lens: Sequence[int],
    p: Tensor,
    q_ids: Tensor | None,
    q_probs: Tensor | None,
    coins: Tensor,
    *rest: Tensor,
) -> Verdict:
    """`<=` for `<`: at a coin of 0 the two differ as `<` differs at 0 and just below it."""
    coins = torch.where(coins == 0.0, -1e-300, coins)
    return accept_sampled(draft_ids, lens, p, q_ids, q_probs, coins, *rest)


def test_the_rule_itself_is_exact() -> None:
    assert distance(base()) < 1e-12
    assert distance(base(WARPED)) < 1e-12


@pytest.mark.parametrize(
    "rule", [believes_everything, keeps_q_in_the_residual, draws_the_bonus_one_row_early]
)
def test_a_wrong_rule_is_caught(rule: Rule) -> None:
    assert distance(replace(base(), rule=rule)) > 0.01


@pytest.mark.parametrize("sharing", [sharing for sharing in Sharing if sharing != Sharing.NONE])
def test_one_uniform_for_two_draws_is_caught(sharing: Sharing) -> None:
    assert distance(replace(base(), sharing=sharing)) > 0.01


def test_a_q_recorded_before_warping_is_caught() -> None:
    """BC-11: the tokens come from the warped law, the q that is handed over does not."""
    case = base(WARPED)
    unwarped = slot_drafter(VOCAB, 2, PLAIN).probs
    wrong = replace(case, drafter=replace(case.drafter, recorded=unwarped))
    assert distance(wrong) > 0.01


def test_a_walk_whose_q_forgets_its_predecessor_is_caught() -> None:
    """The selector's q is that of the path really walked, not of another one."""
    drafter = walk_drafter(VOCAB, 2, candidates=3, temperature=1.0)
    case = Case(ToyTarget.random(VOCAB, PLAIN), drafter)
    assert distance(case) < 1e-12
    forgetful = replace(drafter, recorded=drafter.probs.roll(1, dims=3))
    assert distance(replace(case, drafter=forgetful)) > 0.01


def emits_only_possible_tokens(rule: Rule) -> bool:
    """BC-13: at the ends of every uniform, over all drafts: nothing with p = 0 is said."""
    law = torch.tensor([0.0, 0.6, 0.0, 0.4], dtype=torch.float64)
    for coin in (0.0, LARGEST_COIN):
        for u in (0.0, LARGEST_COIN):
            drafts = torch.arange(VOCAB)[:, None]
            every = torch.full((VOCAB,), u, dtype=torch.float64)
            verdict = rule(
                drafts,
                [1] * VOCAB,
                law.expand(VOCAB, 2, -1),
                torch.arange(VOCAB).expand(VOCAB, 1, -1),
                torch.full((VOCAB, 1, VOCAB), 0.25),
                torch.full((VOCAB, 1), coin, dtype=torch.float64),
                every,
                every,
            )
            said = list(verdict.next_ids)
            said += [i for i, accepted_len in enumerate(verdict.accepted_len) if accepted_len]
            if any(law[token_id] == 0.0 for token_id in said):
                return False
    return True


@pytest.mark.parametrize(
    ("rule", "is_right"), [(accept_sampled, True), (accepts_at_equality, False)]
)
def test_accepting_at_equality_is_caught(rule: Callable[..., Verdict], is_right: bool) -> None:
    """BC-13: the comparison is strict, so that a coin of 0 accepts nothing impossible."""
    assert emits_only_possible_tokens(rule) is is_right
