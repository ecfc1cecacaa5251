"""Acceptance rules with the mistakes that are made elsewhere, and models to catch them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blockdraft.drafters.base import Drafter
from blockdraft.engine.llm import LLM
from blockdraft.types import Verdict
from blockdraft.verification import accept_sampled
from tests.fakes.codec import FakeCodec, make_llm, numbered_words
from tests.fakes.drafting import PointDrafter, SparseDrafter
from tests.fakes.scripted import TableTarget

VOCAB, NUM_DRAFT = 8, 3


def table() -> Tensor:
    """Logits after each two tokens; token 2 is nearly sure after (1, 1), so 2 is an anchor."""
    logits = 1.2 * torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(3))
    logits[1, 1, 2] += 6.0
    return logits


def sparse(**changes: Any) -> SparseDrafter:
    """q on 5 of 8 tokens given the token before: fixed, random, and not like p."""
    gen = torch.Generator().manual_seed(4)
    ids = torch.stack([torch.randperm(VOCAB, generator=gen)[:5] for _ in range(VOCAB)])
    probs = torch.softmax(torch.randn(VOCAB, 5, generator=gen), -1)
    return SparseDrafter(ids, probs, NUM_DRAFT, **changes)


def point() -> PointDrafter:
    return PointDrafter(table().mean(0).argmax(-1), NUM_DRAFT)


def unwarped() -> SparseDrafter:
    """Draws from a sharpened law and tells the law before sharpening."""
    drafter = sparse()
    return sparse(told_probs=torch.softmax(drafter.q_probs.log() / 2, -1))


def llm_of(drafter: Drafter | None, **changes: Any) -> LLM:
    codec = FakeCodec(numbered_words(VOCAB), (), chat_template="yes")
    return make_llm(TableTarget(table(), **changes), drafter, codec=codec, max_batch_size=64)


def accepts_too_often(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """A coin that falls a third short: drafts with p < q are kept too often."""
    return accept_sampled(draft_ids, lens, p, q_ids, q_probs, u[0] / 1.5, *u[1:])


def accepts_everything(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """A coin that always says yes."""
    return accept_sampled(draft_ids, lens, p, q_ids, q_probs, 0.0 * u[0], *u[1:])


def accepts_at_equality(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """`<=` for `<`: the smallest step of a coin decides."""
    coins = torch.where(u[0] > 0.0, torch.nextafter(u[0], torch.zeros_like(u[0])), -1e-300)
    return accept_sampled(draft_ids, lens, p, q_ids, q_probs, coins, *u[1:])


def keeps_q_in_the_residual(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """After a refusal, draws from p itself."""
    verdict = accept_sampled(draft_ids, lens, p, q_ids, q_probs, *u)
    rows = torch.arange(len(p))
    accepted = torch.tensor(verdict.accepted_len)
    last = torch.where(accepted < torch.tensor(lens), u[1], u[2])
    empty = draft_ids[:, :0]
    at = p[rows, accepted][:, None]
    plain = accept_sampled(empty, [0] * len(p), at, None, None, empty.double(), last, last)
    return replace(verdict, next_ids=plain.next_ids)


def does_not_normalise(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, q_ids: Any, q_probs: Any, *u: Tensor
) -> Verdict:
    """Walks max(p - q, 0) with u itself: what the walk does not reach becomes the last token."""
    verdict = accept_sampled(draft_ids, lens, p, q_ids, q_probs, *u)
    if q_ids is None:
        q_ids, q_probs = draft_ids[..., None], torch.ones_like(draft_ids).double()[..., None]
    next_ids = list(verdict.next_ids)
    for i, accepted in enumerate(verdict.accepted_len):
        if accepted < lens[i]:
            left = p[i, accepted].double()
            left = left.scatter_add(0, q_ids[i, accepted], -q_probs[i, accepted].double())
            walked = left.clamp(min=0.0).cumsum(0)
            next_ids[i] = min(int((walked <= u[1][i]).sum()), len(left) - 1)
    return replace(verdict, next_ids=tuple(next_ids))


def draws_the_bonus_one_row_early(
    draft_ids: Tensor, lens: Sequence[int], p: Tensor, *rest: Any
) -> Verdict:
    """Reads the row of the last draft where the row behind it is meant."""
    p, rows, ends = p.clone(), torch.arange(len(p)), torch.tensor(lens)
    p[rows, ends] = p[rows, (ends - 1).clamp(min=0)]
    return accept_sampled(draft_ids, lens, p, *rest)


#: Faults that a sample of tokens shows.
VISIBLE = (
    accepts_too_often,
    keeps_q_in_the_residual,
    does_not_normalise,
    draws_the_bonus_one_row_early,
)
