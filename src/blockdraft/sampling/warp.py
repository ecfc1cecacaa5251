"""From logits to the distribution that tokens are drawn from, and the draw itself.

The one place that knows temperature, top-k, top-p and min-p. The order is fixed: temperature,
top-k, softmax, top-p (a token is kept while the mass before it is below top_p), renormalise, min-p
(relative to the greatest), renormalise. Tokens are ranked by logit and, where logits are equal, by
id: at the edge of top-k and top-p the lowest ids stay.

Each of the three filters keeps a prefix of that ranking, so the work is done on the few best
candidates; the result is the same as that of a full sort, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn import functional

from blockdraft.sampling.topk import choose, fast_topk
from blockdraft.types import SamplingParams

__all__ = ["choose", "draw", "fast_topk", "keeps_every_token", "nonfinite_rows", "probabilities"]

_NUM_CANDIDATES = (64, 1024, 8192)  # tried in turn for top-p, before a full sort
_GROUP = 64  # weights that are summed together first


@dataclass(frozen=True)
class _Warp:
    """The part of SamplingParams that turns logits into probabilities; temperature 0 is greedy."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @classmethod
    def of(cls, params: SamplingParams) -> _Warp:
        if params.is_greedy:
            return cls(0.0, 0, 1.0, 0.0)
        return cls(params.temperature, params.top_k, params.top_p, params.min_p)


def probabilities(
    logits: Float[Tensor, "n v"], params: Sequence[SamplingParams]
) -> Float[Tensor, "n v"]:
    """The target's law of each row: float32, or float64 where the logits are.

    A row's result depends on its own logits and parameters only.

    Args:
        logits: adjusted logits; -inf is impossible. A row with NaN or +inf (`nonfinite_rows`)
            gives one that no token can be drawn from, or NaN; other rows do not notice.
        params: of each row. Greedy rows get the one-hot of `choose`.
    Raises: ValueError if the number of rows and of params differ.
    """
    if len(params) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits and {len(params)} params; give one a row")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rows_of: dict[_Warp, list[int]] = {}
    for row, one in enumerate(params):
        rows_of.setdefault(_Warp.of(one), []).append(row)
    if len(rows_of) == 1:
        return _warped(logits, next(iter(rows_of)))
    out = torch.empty_like(logits)
    for warp, rows in rows_of.items():
        out[rows] = _warped(logits[rows], warp)
    return out


def keeps_every_token(params: SamplingParams, vocab_size: int) -> bool:
    """Whether a sampled row's law is softmax(logits / temperature) and nothing else."""
    warp = _Warp.of(params)
    is_cut = 0 < warp.top_k < vocab_size or warp.top_p < 1.0 or warp.min_p > 0.0
    return warp.temperature > 0.0 and not is_cut


def _warped(logits: Float[Tensor, "n v"], warp: _Warp) -> Float[Tensor, "n v"]:
    if warp.temperature == 0.0:
        return torch.zeros_like(logits).scatter_(-1, choose(logits)[:, None], 1.0)
    if 0 < warp.top_k < logits.shape[-1]:
        values, ids = fast_topk(logits, warp.top_k)
        kept = _kept(_weights(values, warp), None, warp)
        return torch.zeros_like(logits).scatter_(-1, ids, kept.to(logits.dtype))
    # The greatest is subtracted first: a small temperature then cannot blur the top.
    weights = (logits - logits.amax(-1, keepdim=True)).div_(warp.temperature).exp_()
    if warp.top_p < 1.0:
        return _nucleus(logits, _totals(weights), warp)
    if warp.min_p > 0.0:
        weights.masked_fill_(weights < warp.min_p, 0.0)
    return weights.div_(_totals(weights).to(weights.dtype))


def _totals(weights: Float[Tensor, "n v"]) -> Float64[Tensor, "n 1"]:
    """Row sums that are exact to float32 and do not depend on the other rows.

    torch.softmax adds a vocabulary up one by one, with an error near 3e-6; a plain sum is split
    over threads if there is one row only, and rounds differently then.
    """
    return _grouped(weights).sum(-1).double().sum(-1, keepdim=True)


def _nucleus(
    logits: Float[Tensor, "n v"], totals: Float64[Tensor, "n 1"], warp: _Warp
) -> Float[Tensor, "n v"]:
    """Top-p over a whole vocabulary; rows that few candidates leave open go on."""
    out = torch.zeros_like(logits)
    rows = torch.arange(len(logits), device=logits.device)
    for size in (*_NUM_CANDIDATES, logits.shape[-1]):
        num_candidates = min(size, logits.shape[-1])
        values, ids = fast_topk(logits, num_candidates)
        kept = _kept(_weights(values, warp), totals, warp)
        out[rows[:, None], ids] = kept.to(out.dtype)
        is_open = kept[:, -1] > 0.0  # the last candidate stayed: those behind it might too
        if num_candidates == logits.shape[-1] or not bool(is_open.any()):
            break
        rows, logits, totals = rows[is_open], logits[is_open], totals[is_open]
    return out


def _weights(values: Float[Tensor, "n c"], warp: _Warp) -> Float64[Tensor, "n c"]:
    """Unnormalised probabilities of ranked candidates; the first is 1."""
    return (values - values[:, :1]).double().div_(warp.temperature).exp_()


def _kept(
    weights: Float64[Tensor, "n c"], totals: Float64[Tensor, "n 1"] | None, warp: _Warp
) -> Float64[Tensor, "n c"]:
    """Probabilities of ranked candidates after top-p and min-p: a prefix, 0 behind it.

    Sums run from the best candidate on, so that they do not depend on how many there are.
    `totals` are the weights of all tokens, relative to the best; None if there are no others.
    """
    cumulative = weights.cumsum(-1)
    kept = weights >= warp.min_p
    if warp.top_p < 1.0:
        before = functional.pad(cumulative[:, :-1], (1, 0))
        kept &= before < warp.top_p * (cumulative[:, -1:] if totals is None else totals)
    last = kept.sum(-1, keepdim=True).sub_(1).clamp_(min=0)  # a row of NaN keeps none
    mass = cumulative.gather(-1, last)
    return torch.where(kept, weights / mass, 0.0)


def draw(probs: Float[Tensor, "n v"], u: Float64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """One id a row by inverse CDF in float64; rows need not be normalised.

    An id of probability 0 is never drawn, whatever u in [0, 1) is.

    Raises: ValueError if a row has no mass (or NaN).
    """
    groups = _grouped(probs)
    cumulative = groups.sum(-1, dtype=torch.float64).cumsum(-1)
    totals = cumulative[:, -1]
    if not bool((totals > 0.0).all()):
        raise ValueError("a row has no probability mass to draw from")
    targets = u.double() * totals
    group = _first_above(cumulative, targets)
    every = torch.arange(len(probs), device=probs.device)
    before = functional.pad(cumulative, (1, 0))[every, group]
    inner = groups[every, group].double().cumsum(-1)
    return group * groups.shape[-1] + _first_above(inner, targets - before)


def _grouped(weights: Float[Tensor, "n v"]) -> Float[Tensor, "n g s"]:
    """Rows cut into groups; zeros fill the last one."""
    size = _GROUP if weights.shape[-1] > 4 * _GROUP else weights.shape[-1]
    padding = -weights.shape[-1] % size
    padded = functional.pad(weights, (0, padding)) if padding else weights
    return padded.reshape(len(weights), padded.shape[-1] // size, size)


def _first_above(
    cumulative: Float64[Tensor, "n m"], targets: Float64[Tensor, "n"]
) -> Int64[Tensor, "n"]:
    """First position whose cumulative weight exceeds the target: it has a weight above 0."""
    below_all = torch.nextafter(cumulative[:, -1], torch.zeros_like(targets))
    targets = torch.minimum(targets, below_all)  # u * total may have been rounded up to the total
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]


def nonfinite_rows(logits: Float[Tensor, "n v"]) -> list[bool]:
    """Which rows no token can be drawn from: NaN or +inf anywhere, or -inf everywhere.

    One pass: the maximum of a row is finite if and only if none of these hold.
    """
    bad: list[bool] = logits.amax(-1).isfinite().logical_not_().tolist()
    return bad
