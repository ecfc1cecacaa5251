"""From the target's logits to a verdict: each row by its own sampling parameters and streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.decoding.row import Row
from blockdraft.sampling.adjust import AdjustRow, adjust_logits
from blockdraft.sampling.logprobs import token_logprobs
from blockdraft.sampling.streams import Purpose, uniforms, uniforms_for
from blockdraft.sampling.warp import choose, nonfinite_rows, probabilities
from blockdraft.targets.base import PassOutput
from blockdraft.types import Proposal, Verdict
from blockdraft.verification.rejection import accept_greedy, accept_sampled

_BROKEN = (
    "the target gave non-finite logits (NaN or infinity) for this request; "
    "try --dtype float32, and check the target's files"
)
_NOTHING_LEFT = (
    "logit_bias, penalties and min_tokens of this request leave no token to choose; ask for less"
)


def choose_tokens(
    rows: Sequence[Row], proposal: Proposal, output: PassOutput
) -> tuple[Verdict, dict[int, str]]:
    """Accept a prefix of each row's drafts and choose the token after it.

    Args:
        output: the pass over each anchor and its drafts; entries behind them are padding.
    Returns: the verdict, and a message for each row whose logits were not finite (its verdict
        is meaningless).
    """
    if output.best is not None:
        best_ids, is_bad = output.best
        errors = _messages(proposal.lens, is_bad.tolist(), _BROKEN)
        drafts = proposal.ids[:, : best_ids.shape[1] - 1]
        return accept_greedy(drafts, proposal.lens, best_ids), errors
    assert output.logits is not None
    logits = output.logits
    errors = find_errors(proposal.lens, logits)
    logits = _without(logits, errors)
    adjusted = adjust_logits(logits, _adjust_rows(rows, proposal))
    if adjusted is not logits:
        emptied = find_errors(proposal.lens, adjusted, _NOTHING_LEFT)
        logits, errors = _without(adjusted, emptied), {**emptied, **errors}
    sampled = [i for i, row in enumerate(rows) if not row.params.is_greedy]
    width = logits.shape[1] - 1
    drafts = proposal.ids[:, :width]
    if not sampled:
        return accept_greedy(drafts, proposal.lens, choose(logits)), errors
    verdict = _accept_sampled([rows[i] for i in sampled], sampled, proposal, logits)
    if len(sampled) == len(rows):
        return verdict, errors
    greedy = [i for i, row in enumerate(rows) if row.params.is_greedy]
    other = accept_greedy(
        drafts[greedy], tuple(proposal.lens[i] for i in greedy), choose(logits[greedy])
    )
    return _merge(len(rows), {**_by_row(sampled, verdict), **_by_row(greedy, other)}), errors


def best_is_enough(rows: Sequence[Row]) -> bool:
    """Whether the greatest logits' ids are all that these rows need of a pass."""
    return all(
        row.params.is_greedy and not row.params.has_adjustments and row.params.logprobs is None
        for row in rows
    )


def record_logprobs(row: Row, logits: Tensor | None, i: int, kept: Sequence[int]) -> None:
    """Note what the target thought of the tokens it committed, if the request asks for it."""
    top_n = row.params.logprobs
    if top_n is not None and kept and logits is not None:
        ids = torch.tensor(kept, device=logits.device)
        row.logprobs.extend(token_logprobs(logits[i, : len(kept)], ids, top_n))


def draws(
    rows: Sequence[Row], positions: NDArray[np.int64], purpose: Purpose
) -> Float64[Tensor, "b n"]:
    """Each row's own uniforms for the tokens at `positions` [b, n]."""
    seeds = [row.request.seed for row in rows]
    return uniforms(seeds, [row.request.stream_key for row in rows], positions, purpose)


def find_errors(
    lens: Sequence[int], logits: Float[Tensor, "b t v"], message: str = _BROKEN
) -> dict[int, str]:
    """The message for each row with non-finite logits among its valid rows."""
    bad = nonfinite_rows(logits.flatten(0, 1))
    if not any(bad):
        return {}
    width = logits.shape[1]
    return _messages(lens, [bad[i * width : (i + 1) * width] for i in range(len(lens))], message)


def _messages(
    lens: Sequence[int], is_bad: Sequence[Sequence[bool]], message: str
) -> dict[int, str]:
    return {i: message for i, length in enumerate(lens) if any(is_bad[i][: length + 1])}


def _without(logits: Float[Tensor, "b t v"], errors: dict[int, str]) -> Float[Tensor, "b t v"]:
    """Zeros for failed rows: their verdict is not used, and NaN would stop the draws of all."""
    if not errors:
        return logits
    return logits.index_fill(0, torch.tensor(list(errors), device=logits.device), 0.0)


def _adjust_rows(rows: Sequence[Row], proposal: Proposal) -> list[AdjustRow]:
    if not any(row.params.has_adjustments for row in rows):
        return []
    drafts = proposal.ids.tolist()
    return [
        AdjustRow(
            params=row.params,
            prompt_len=row.prompt_len,
            token_ids=row.token_ids,
            draft_ids=drafts[i][: proposal.lens[i]],
            end_ids=tuple(row.stop_ids),
        )
        for i, row in enumerate(rows)
    ]


def _accept_sampled(
    rows: Sequence[Row], index: list[int], proposal: Proposal, logits: Tensor
) -> Verdict:
    b, width, vocab_size = logits.shape
    k = width - 1
    params = [row.params for row in rows for _ in range(width)]
    # A vocabulary for every row of a block is megabytes: no copy where all rows are sampled.
    mine = logits if len(index) == b else logits[index]
    p = probabilities(mine.flatten(0, 1), params).view(len(rows), width, vocab_size)
    steps = np.array([len(row.token_ids) for row in rows])[:, None] + np.arange(width)
    coins, residuals, bonuses = _verify_draws(rows, steps).to(logits.device)
    lens = tuple(proposal.lens[i] for i in index)
    return accept_sampled(
        proposal.ids[index, :k],
        lens,
        p,
        None if proposal.q_ids is None else proposal.q_ids[index, :k],
        None if proposal.q_probs is None else proposal.q_probs[index, :k],
        coins[:, :k],
        residuals[:, 0],
        bonuses[:, 0],
    )


def _verify_draws(rows: Sequence[Row], positions: NDArray[np.int64]) -> Float64[Tensor, "p b n"]:
    """Coins, and the draws for the token after them.

    At most one residual and one bonus token is drawn a cycle, and every cycle starts at another
    position: keyed by the first position, no draw is ever used twice.
    """
    seeds = [row.request.seed for row in rows]
    keys = [row.request.stream_key for row in rows]
    purposes = (Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.BONUS)
    return uniforms_for(seeds, keys, positions, purposes)


def _by_row(index: Sequence[int], verdict: Verdict) -> dict[int, tuple[int, int]]:
    return dict(zip(index, zip(verdict.accepted_len, verdict.next_ids, strict=True), strict=True))


def _merge(num_rows: int, by_row: dict[int, tuple[int, int]]) -> Verdict:
    pairs = [by_row[i] for i in range(num_rows)]
    return Verdict(tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))
