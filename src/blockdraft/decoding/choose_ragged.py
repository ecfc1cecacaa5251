"""Sampling from logits without padding: a vocabulary for every place that no row has is megabytes.

Where some rows of a batch draft and others do not, padding would cost more than their drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from blockdraft.decoding.row import Row
from blockdraft.sampling.warp import keeps_every_token
from blockdraft.types import Proposal, Verdict


def can_be_ragged(rows: Sequence[Row], vocab_size: int) -> bool:
    """Whether all that these rows need of logits is to be sampled from as they are."""
    return all(
        not row.params.is_greedy
        and not row.params.has_adjustments
        and row.params.logprobs is None
        and keeps_every_token(row.params, vocab_size)
        for row in rows
    )


def choose_ragged(
    rows: Sequence[Row],
    proposal: Proposal,
    logits: Float[Tensor, "n v"],
    isa: str,
    draws: Float[Tensor, "3 b r"],
) -> Verdict | None:
    """As `choose_tokens` where `can_be_ragged`; None if some logits are not finite.

    Args:
        logits: of each row's anchor and drafts, one row after the other.
        draws: coins, residuals and bonuses of each row.
    """
    # Imported late: native kernels are there only where a target runs on them.
    from blockdraft.kernels.native.accept import accept_rows, nonfinite_rows

    if any(nonfinite_rows(logits, isa)):
        return None
    num_slots = max(proposal.lens)
    coins, residuals, bonuses = draws
    q_ids, q_probs = proposal.q_ids, proposal.q_probs
    accepted, next_ids = accept_rows(
        logits,
        [0, *itertools.accumulate(1 + n for n in proposal.lens[:-1])],
        [row.params.temperature for row in rows],
        proposal.ids[:, :num_slots],
        proposal.lens,
        None if q_ids is None else q_ids[:, :num_slots],
        None if q_probs is None else q_probs[:, :num_slots],
        coins[:, :num_slots],
        residuals[:, 0],
        bonuses[:, 0],
        isa,
    )
    return Verdict(tuple(accepted), tuple(next_ids))


def padded(logits: Float[Tensor, "n v"], lens: Sequence[int]) -> Float[Tensor, "b r v"]:
    """The same logits, each row's own, zeros behind them."""
    parts = torch.split(logits, [1 + n for n in lens])
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
