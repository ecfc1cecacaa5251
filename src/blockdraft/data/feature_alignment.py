"""Do states belong to their tokens? Cheap: an early layer's state still shows which token it is of.

Standardised and projected to a few numbers, the states of one token resemble each other wherever
it stands. A sample whose states fit the mean states of its tokens is in place; one that is shifted
fits those of its neighbours better, and one that was swapped fits none. On SmolLM2-135M, layer 1,
the mean cosine is 0.88 to 0.98 in place, at most 0.22 shifted, and about 0.11 swapped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cosine_similarity

#: Numbers a state is projected to.
_WIDTH = 64

#: Tokens below which the mean of a sample says nothing.
MIN_TOKENS = 8


class TokenMeans:
    """Mean early states of tokens, over some samples.

    Args:
        token_ids: of each sample, the tokens its states stand after [r].
        states: an early layer's states of each sample [r, m].
    """

    def __init__(self, token_ids: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._projection = torch.randn(states[0].shape[1], _WIDTH, generator=generator)
        parts = [part.float() @ self._projection for part in states]
        rows, ids = torch.cat(parts), torch.cat(list(token_ids))
        self._mean, self._std = rows.mean(0), rows.std(0).clamp_min(1e-6)
        self._vocab = ids.unique()  # type: ignore[no-untyped-call]
        places = torch.searchsorted(self._vocab, ids)
        self._sums = torch.zeros(len(self._vocab), _WIDTH).index_add_(0, places, self._scale(rows))
        self._counts = torch.bincount(places, minlength=len(self._vocab)).float()

    def score(
        self, token_ids: Int64[Tensor, "r"], states: Float[Tensor, "r m"], *, is_own: bool
    ) -> tuple[float, float] | None:
        """How well states fit their tokens, and how well the neighbours' (the better of both).

        Args:
            is_own: the sample is one of those the means were taken over; it is taken out of them.
        Returns: mean cosines; None if too few of its tokens are known.
        """
        rows = self._scale(states.float() @ self._projection)
        sums, counts = self._sums, self._counts
        if is_own:
            places = torch.searchsorted(self._vocab, token_ids)
            sums = sums.index_add(0, places, rows, alpha=-1)
            counts = counts - torch.bincount(places, minlength=len(counts))
        fits = [
            _fit(self._vocab, sums, counts, ids, part)
            for ids, part in (
                (token_ids, rows),
                (token_ids[1:], rows[:-1]),
                (token_ids[:-1], rows[1:]),
            )
        ]
        if any(fit is None for fit in fits):
            return None
        here, after, before = (float(fit or 0.0) for fit in fits)
        return here, max(after, before)

    def _scale(self, rows: Tensor) -> Tensor:
        return (rows - self._mean) / self._std


def _fit(vocab: Tensor, sums: Tensor, counts: Tensor, ids: Tensor, rows: Tensor) -> float | None:
    """Mean cosine of rows with the means of the tokens given."""
    places = torch.searchsorted(vocab, ids).clamp_max(len(vocab) - 1)
    known = (vocab[places] == ids) & (counts[places] > 0.5)
    if int(known.sum()) < MIN_TOKENS:
        return None
    return float(cosine_similarity(rows[known], sums[places[known]], dim=-1).mean())
