"""From the target's logits to a verdict: each row by its own sampling parameters and streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.decoding.choose_ragged import choose_ragged, padded
from blockdraft.decoding.row import Row
from blockdraft.kernels.streams import uniforms_for
from blockdraft.sampling.adjust import AdjustRow, adjust_logits
from blockdraft.sampling.logprobs import token_logprobs
from blockdraft.sampling.streams import Purpose
from blockdraft.sampling.warp import choose, keeps_every_token, nonfinite_rows, probabilities
from blockdraft.targets.base import PassOutput
from blockdraft.types import Proposal, Verdict
from blockdraft.verification.rejection import accept_greedy, accept_sampled

#: Judges some of the rows of a pass: rows, which of them, what was drafted, logits of all, isa.
Rule = Callable[[Sequence[Row], list[int], Proposal, Tensor, str | None], Verdict]

_BROKEN = (
    "the target gave non-finite logits (NaN or infinity) for this request; "
    "try --dtype float32, and check the target's files"
)
_NOTHING_LEFT = (
    "logit_bias, penalties and min_tokens of this request leave no token to choose; ask for less"
)


@dataclass(frozen=True)
class Fault:
    """Behind the first `at` drafts of a row no token can be chosen, and why."""

    at: int
    message: str


def choose_tokens(
    rows: Sequence[Row], proposal: Proposal, output: PassOutput
) -> tuple[Verdict, dict[int, Fault]]:
    """Accept a prefix of each row's drafts and choose the token after it.

    Drafts before the first unusable logits of a row are judged as ever: whether they stand must not
    depend on what is drafted behind them, or the law of sampled tokens would.

    Args:
        output: the pass over each anchor and its drafts; entries behind them are padding.
    Returns: the verdict, and the first fault of each row that has one. A row runs into it if all
        drafts before it are accepted: those stand, and the token behind them is meaningless.
    """
    if output.best is not None:
        best_ids, is_bad = output.best
        faults = _faults(proposal.lens, is_bad.tolist(), _BROKEN)
        drafts = proposal.ids[:, : best_ids.shape[1] - 1]
        return accept_greedy(drafts, _sound_lens(proposal.lens, faults), best_ids), faults
    if output.ragged is not None:
        assert output.isa is not None
        uniforms = _verify_draws(rows, 1 + max(proposal.lens))
        verdict = choose_ragged(rows, proposal, output.ragged, output.isa, uniforms)
        if verdict is not None:
            return verdict, {}
        output = dataclasses.replace(output, logits=padded(output.ragged, proposal.lens))
    assert output.logits is not None
    logits, faults = _sound(output.logits, proposal.lens, _BROKEN, output.isa)
    adjusted = adjust_logits(logits, _adjust_rows(rows, proposal))
    if adjusted is not logits:
        logits, emptied = _sound(adjusted, proposal.lens, _NOTHING_LEFT, output.isa)
        faults = _first_of_each(faults, emptied)
    judged = dataclasses.replace(proposal, lens=_sound_lens(proposal.lens, faults))
    verdicts = [
        (index, rule(rows, index, judged, logits, output.isa))
        for rule, index in _groups(rows, logits, output.isa).items()
    ]
    return _merge(verdicts), faults


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
    return uniforms_for(seeds, [row.request.stream_key for row in rows], positions, (purpose,))[0]


def _sound(
    logits: Float[Tensor, "b t v"], lens: Sequence[int], message: str, isa: str | None
) -> tuple[Float[Tensor, "b t v"], dict[int, Fault]]:
    """Logits with zeros from each row's first non-finite ones on, and where those are.

    No token is chosen from the zeros, but NaN would stop the draws of all rows.
    """
    width, bad = logits.shape[1], _nonfinite(logits.flatten(0, 1), isa)
    if not any(bad):
        return logits, {}
    flags = [bad[i * width : (i + 1) * width] for i in range(len(lens))]
    logits = logits.clone()
    for row, is_bad in zip(logits, flags, strict=True):
        if True in is_bad:
            row[is_bad.index(True) :] = 0.0
    return logits, _faults(lens, flags, message)


def _nonfinite(logits: Float[Tensor, "n v"], isa: str | None) -> list[bool]:
    if isa is None or logits.dtype != torch.float32:
        return nonfinite_rows(logits)
    from blockdraft.kernels.native import accept

    return accept.nonfinite_rows(logits.contiguous(), isa)


def _faults(
    lens: Sequence[int], is_bad: Sequence[Sequence[bool]], message: str
) -> dict[int, Fault]:
    return {
        i: Fault(flags.index(True), message)
        for i, flags in enumerate(flags[: n + 1] for n, flags in zip(lens, is_bad, strict=True))
        if True in flags
    }


def _first_of_each(one: dict[int, Fault], other: dict[int, Fault]) -> dict[int, Fault]:
    both = {i: min(one[i], other[i], key=lambda fault: fault.at) for i in one.keys() & other.keys()}
    return one | other | both


def _sound_lens(lens: Sequence[int], faults: dict[int, Fault]) -> tuple[int, ...]:
    """How many drafts of each row there are sound logits for."""
    return tuple(faults[i].at if i in faults else n for i, n in enumerate(lens))


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


def _groups(rows: Sequence[Row], logits: Tensor, isa: str | None) -> dict[Rule, list[int]]:
    """Rows by the rule that judges them, which depends on their own parameters alone."""
    can_be_native = isa is not None and logits.dtype == torch.float32
    groups: dict[Rule, list[int]] = {}
    for i, row in enumerate(rows):
        is_native = can_be_native and keeps_every_token(row.params, logits.shape[-1])
        sampled = _accept_natively if is_native else _accept_sampled
        groups.setdefault(_accept_greedy if row.params.is_greedy else sampled, []).append(i)
    return groups


def _of(x: Tensor, index: list[int]) -> Tensor:
    """Some rows; no copy where all are meant: a vocabulary for every row is megabytes."""
    return x if len(index) == len(x) else x[index]


def _accept_greedy(
    rows: Sequence[Row], index: list[int], proposal: Proposal, logits: Tensor, isa: str | None
) -> Verdict:
    drafts, lens = proposal.ids[:, : logits.shape[1] - 1], [proposal.lens[i] for i in index]
    return accept_greedy(_of(drafts, index), lens, choose(_of(logits, index)))


def _accept_sampled(
    rows: Sequence[Row], index: list[int], proposal: Proposal, logits: Tensor, isa: str | None
) -> Verdict:
    b, width, vocab_size = len(index), *logits.shape[1:]
    params = [rows[i].params for i in index for _ in range(width)]
    p = probabilities(_of(logits, index).flatten(0, 1), params).view(b, width, vocab_size)
    coins, residuals, bonuses = _verify_draws([rows[i] for i in index], width).to(p.device)
    return accept_sampled(
        _of(proposal.ids, index)[:, : width - 1],
        tuple(proposal.lens[i] for i in index),
        p,
        _q_of(proposal.q_ids, index, width),
        _q_of(proposal.q_probs, index, width),
        coins[:, : width - 1],
        residuals[:, 0],
        bonuses[:, 0],
    )


def _accept_natively(
    rows: Sequence[Row], index: list[int], proposal: Proposal, logits: Tensor, isa: str | None
) -> Verdict:
    """The same rule, by kernels that make no vector of probabilities."""
    # Imported late: native kernels are there only where a target runs on them.
    from blockdraft.kernels.native.accept import accept_rows

    assert isa is not None
    width = logits.shape[1]
    coins, residuals, bonuses = _verify_draws([rows[i] for i in index], width)
    accepted, next_ids = accept_rows(
        logits.contiguous().flatten(0, 1),
        [i * width for i in index],
        [rows[i].params.temperature for i in index],
        _of(proposal.ids, index)[:, : width - 1],
        [proposal.lens[i] for i in index],
        _q_of(proposal.q_ids, index, width),
        _q_of(proposal.q_probs, index, width),
        coins[:, : width - 1],
        residuals[:, 0],
        bonuses[:, 0],
        isa,
    )
    return Verdict(tuple(accepted), tuple(next_ids))


def _q_of(q: Tensor | None, index: list[int], width: int) -> Tensor | None:
    return None if q is None else _of(q, index)[:, : width - 1]


def _verify_draws(rows: Sequence[Row], width: int) -> Float64[Tensor, "3 b n"]:
    """Coins, and the draws for the token after them.

    At most one residual and one bonus token is drawn a cycle, and every cycle starts at another
    position: keyed by the first position, no draw is ever used twice.
    """
    positions = np.array([len(row.token_ids) for row in rows])[:, None] + np.arange(width)
    seeds = [row.request.seed for row in rows]
    keys = [row.request.stream_key for row in rows]
    purposes = (Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.BONUS)
    return uniforms_for(seeds, keys, positions, purposes)


def _merge(verdicts: Sequence[tuple[list[int], Verdict]]) -> Verdict:
    """One verdict of all rows, in their order."""
    pairs = {
        i: pair
        for index, verdict in verdicts
        for i, pair in zip(
            index, zip(verdict.accepted_len, verdict.next_ids, strict=True), strict=True
        )
    }
    accepted_len, next_ids = zip(*(pairs[i] for i in range(len(pairs))), strict=True)
    return Verdict(accepted_len, next_ids)
