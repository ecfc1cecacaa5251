"""Laws of short outputs, written out by hand, and the test of counts against them.

Nothing of the package's sampler is used: this is the reference it is held against.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from blockdraft.types import SamplingParams

Law = npt.NDArray[np.float64]

#: Cells expected to be rarer than this are counted together.
_RARE = 8.0


def warped(logits: npt.ArrayLike, params: SamplingParams) -> Law:
    """One row's law: temperature, top-k, softmax, top-p, min-p, each written the plain way."""
    values = np.asarray(logits, dtype=np.float64)
    scaled = values / params.temperature
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    weights = np.exp(scaled - scaled.max())
    if params.top_k:
        weights[order[params.top_k :]] = 0.0
    weights /= weights.sum()
    before = 0.0
    for i in order:
        mass = weights[i]
        if before >= params.top_p:
            weights[i] = 0.0
        before += mass
    weights /= weights.sum()
    weights[weights < params.min_p * weights.max()] = 0.0
    law: Law = weights / weights.sum()
    return law


def table_law(
    logits: torch.Tensor, prompt: Sequence[int], length: int, params: SamplingParams
) -> Law:
    """Law of the first `length` tokens that a TableTarget says after a prompt: [v, v, ..]."""
    v = logits.shape[-1]
    rows = np.array([[warped(logits[x, y].numpy(), params) for y in range(v)] for x in range(v)])
    pair: Law = np.zeros((v, v))  # law of the last two tokens, given all tokens before
    previous, last = ([prompt[0], *prompt])[-2:]
    pair[previous, last] = 1.0
    law = pair.reshape(1, v, v)
    for _ in range(length):
        law = (law[..., None] * rows).reshape(-1, v, v)
    # law is [cells of all tokens but the last two, v, v], led by the prompt's pair.
    return law.reshape((v,) * (length + 2))[previous, last]


def p_value(counts: npt.ArrayLike, law: Law) -> float:
    """Chi-square test of counts against a law; 0 if something impossible was counted."""
    seen, cells = np.asarray(counts, dtype=np.float64).ravel(), law.ravel()
    expected = cells / cells.sum() * seen.sum()
    if np.any(seen[cells == 0.0]):
        return 0.0
    is_rare = expected < _RARE
    pairs = list(zip(seen[~is_rare], expected[~is_rare], strict=True))
    if expected[is_rare].sum() >= _RARE:
        pairs.append((seen[is_rare].sum(), expected[is_rare].sum()))
    statistic = sum((count - mean) ** 2 / mean for count, mean in pairs)
    return chi_square_tail(statistic, len(pairs) - 1)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square > statistic)."""
    if freedom < 1:
        return 1.0
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, torch.tensor(statistic / 2, dtype=torch.float64)))


def binomial_p_value(count: int, total: int, chance: float) -> float:
    """Two-sided, by the normal limit."""
    spread = math.sqrt(total * chance * (1 - chance))
    return math.erfc(abs(count - total * chance) / spread / math.sqrt(2))
