"""The exact law of what a verification rule commits: every draft, every coin, every draw.

All randomness of a cycle is a few uniforms. [0, 1) of each is cut at the points where the outcome
can change; the rule is run once in the middle of every piece (of every combination of pieces) and
its outcome weighted by the piece's length. No sampling, no tolerance but rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import torch
from torch import Tensor

from blockdraft.sampling import draw
from blockdraft.types import Verdict
from blockdraft.verification import accept_sampled
from tests.exact.toys import ToyDrafter, ToyTarget

Rule = Callable[..., Verdict]
Context = tuple[int, int]
Run = tuple[int, ...]


class Sharing(Enum):
    """Which draws wrongly use one uniform."""

    NONE = "none"
    DRAFT_ACCEPT = "draft and accept"
    ACCEPT_RESIDUAL = "accept and residual"
    DRAFT_RESIDUAL = "draft and residual"


@dataclass(frozen=True)
class Case:
    """What is enumerated: who drafts for whom, under which rule."""

    target: ToyTarget
    drafter: ToyDrafter
    rule: Rule = accept_sampled
    sharing: Sharing = Sharing.NONE


@dataclass(frozen=True)
class _Branch:
    """One combination of pieces: the drafts, the uniforms in the middle, the volume."""

    path: Run = ()
    u_accept: tuple[float, ...] = ()
    rejected_at: int | None = None
    last_piece: tuple[float, float] = (0.0, 1.0)  # narrower where the last draw shares a uniform
    u_last: float = 0.5
    weight: float = 1.0


def output_law(case: Case, start: Context, lens: Sequence[int], num_tokens: int) -> Tensor:
    """Law of the first `num_tokens` tokens [v ** num_tokens] after one block for each of `lens`.

    Runs that end earlier are continued by the target itself: if the blocks are exact, the whole
    is the target's law, and blocks whose end depends on what they say are found out.
    """
    vocab = case.target.vocab
    runs: dict[Run, float] = {(): 1.0}
    for length in lens:
        later: dict[Run, float] = defaultdict(float)
        known: dict[Context, dict[Run, float]] = {}
        for run, weight in runs.items():
            context = (*start, *run)[-2:]
            if context not in known:
                known[context] = block_law(case, context, length)
            for committed, share in known[context].items():
                later[run + committed] += weight * share
        runs = later
    law = torch.zeros(vocab**num_tokens, dtype=torch.float64)
    for run, weight in runs.items():
        rest = num_tokens - len(run)
        first = sum(token * vocab ** (num_tokens - 1 - i) for i, token in enumerate(run))
        law[first : first + vocab**rest] += weight * target_law(
            case.target, (*start, *run)[-2:], rest
        )
    return law


def target_law(target: ToyTarget, context: Context, num_tokens: int) -> Tensor:
    """The target's own law of the next `num_tokens` tokens [v ** num_tokens]."""
    law = torch.ones(1, dtype=torch.float64)
    vocab = target.vocab
    rows = target.laws[context][None]  # laws of the next token after each sequence so far
    seconds = torch.tensor([context[1]])
    for _ in range(num_tokens):
        law = (law[:, None] * rows).flatten()
        tokens = torch.arange(vocab).repeat(len(seconds))
        firsts = seconds.repeat_interleave(vocab)
        rows, seconds = target.laws[firsts, tokens], tokens
    return law


def block_law(case: Case, context: Context, length: int) -> dict[Run, float]:
    """Law of the tokens that one cycle commits after a context."""
    branches = list(_branches(case, context, length))
    verdict = _judge(case, context, length, branches)
    law: dict[Run, float] = defaultdict(float)
    for branch, accepted_len, next_id in zip(
        branches, verdict.accepted_len, verdict.next_ids, strict=True
    ):
        law[(*branch.path[:accepted_len], next_id)] += branch.weight
    return law


def _judge(case: Case, context: Context, length: int, branches: Sequence[_Branch]) -> Verdict:
    """Run the rule on all branches as one batch."""
    drafter = case.drafter
    num_slots = drafter.num_draft_tokens
    shape = (len(branches), num_slots)
    paths = torch.tensor([b.path for b in branches], dtype=torch.long).view(shape)
    tokens = torch.cat([torch.tensor(context).expand(len(paths), 2), paths], 1)
    p = case.target.laws[tokens[:, :-1], tokens[:, 1:]]
    index = (*context, torch.arange(num_slots), tokens[:, 1:-1])
    masses = drafter.probs if drafter.recorded is None else drafter.recorded
    coins = torch.tensor([b.u_accept for b in branches], dtype=torch.float64)
    last = torch.tensor([b.u_last for b in branches], dtype=torch.float64)
    is_rejected = torch.tensor([b.rejected_at is not None for b in branches])
    return case.rule(
        paths,
        [length] * len(paths),
        p,
        None if drafter.is_point_mass else drafter.ids[index],
        None if drafter.is_point_mass else masses[index],
        coins.view(shape),
        torch.where(is_rejected, last, 0.5),
        torch.where(is_rejected, 0.5, last),
    )


def _branches(case: Case, context: Context, length: int) -> Iterator[_Branch]:
    branches = [_Branch()]
    for slot in range(case.drafter.num_draft_tokens):
        branches = [
            grown for branch in branches for grown in _slot(case, context, length, slot, branch)
        ]
    for branch in branches:
        yield from _last_draw(case, context, length, branch)


def _slot(
    case: Case, context: Context, length: int, slot: int, branch: _Branch
) -> Iterator[_Branch]:
    """Every draft and every coin of one slot."""
    tokens = (*context, *branch.path)
    law = case.target.laws[tokens[-2], tokens[-1]]
    index = (*context, slot, tokens[-1])
    ids, q = case.drafter.ids[index], case.drafter.probs[index]
    recorded = q if case.drafter.recorded is None else case.drafter.recorded[index]
    for low, high in _pieces(q.cumsum(0).tolist()):
        u_draft = torch.tensor([(low + high) / 2], dtype=torch.float64)
        token = int(ids[draw(q[None], u_draft)])
        threshold = float(law[token] / recorded[ids == token].sum())
        is_shared = case.sharing is Sharing.DRAFT_ACCEPT
        span = (low, high) if is_shared else (0.0, 1.0)
        for coin_low, coin_high in _pieces([threshold], *span):
            u_accept = (coin_low + coin_high) / 2
            grown = replace(
                branch,
                path=(*branch.path, token),
                u_accept=(*branch.u_accept, u_accept),
                weight=branch.weight * (coin_high - coin_low) * (1.0 if is_shared else high - low),
            )
            if branch.rejected_at is None and slot < length and u_accept >= threshold:
                pieces = {
                    Sharing.ACCEPT_RESIDUAL: (coin_low, coin_high),
                    Sharing.DRAFT_RESIDUAL: (low, high),
                }
                grown = replace(
                    grown, rejected_at=slot, last_piece=pieces.get(case.sharing, (0.0, 1.0))
                )
            yield grown


def _last_draw(case: Case, context: Context, length: int, branch: _Branch) -> Iterator[_Branch]:
    """Every token after the accepted drafts."""
    slot = length if branch.rejected_at is None else branch.rejected_at
    tokens = (*context, *branch.path[:slot])
    law = case.target.laws[tokens[-2], tokens[-1]]
    cuts = law.cumsum(0).tolist()
    if branch.rejected_at is not None:
        index = (*context, slot, tokens[-1])
        masses = case.drafter.probs if case.drafter.recorded is None else case.drafter.recorded
        residual = law.index_add(0, case.drafter.ids[index], -masses[index]).clamp(min=0.0)
        cuts += (residual.cumsum(0) / residual.sum()).tolist()
    low, high = branch.last_piece
    for start, end in _pieces(cuts, low, high):
        share = (end - start) / (high - low)
        yield replace(branch, u_last=(start + end) / 2, weight=branch.weight * share)


def _pieces(
    cuts: Sequence[float], low: float = 0.0, high: float = 1.0
) -> Iterator[tuple[float, float]]:
    """[low, high) cut at the given points."""
    inside = sorted({cut for cut in cuts if low < cut < high})
    return pairwise([low, *inside, high])
