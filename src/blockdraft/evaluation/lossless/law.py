"""The target's exact law after any text, by a reference that shares nothing with the sampler."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import RowBatch, Target
from blockdraft.types import SamplingParams

_CHUNK = 512  # tokens of the text that are read in one pass


def reference_law(logits: Float[Tensor, "v"], params: SamplingParams) -> Float64[Tensor, "v"]:
    """Temperature, top-k, softmax, top-p, min-p, each written the plain way, in float64.

    Args:
        params: not greedy; penalties and bias are not read.
    """
    scaled = logits.double() / params.temperature
    weights = torch.exp(scaled - scaled.max())
    # Ranked by logit, equal ones by id: the order that top-k and top-p are defined on.
    order = torch.sort(logits.double(), descending=True, stable=True).indices
    if params.top_k:
        weights[order[params.top_k :]] = 0.0
    ranked = weights[order] / weights.sum()
    before = ranked.cumsum(0) - ranked
    if params.top_p < 1.0:
        weights[order[before >= params.top_p]] = 0.0
    if params.min_p > 0.0:
        weights[weights < params.min_p * weights.max()] = 0.0
    return weights / weights.sum()


def is_clear(logits: Float[Tensor, "v"], params: SamplingParams, share: float) -> bool:
    """Whether rounding can change which tokens top-k, top-p and min-p keep.

    Args:
        share: how far rounding moves logits, as a share of the greatest one's size.
    """
    move = share * max(1.0, float(logits.abs().max())) / params.temperature
    if 0 < params.top_k < len(logits):
        values = logits.double().topk(params.top_k + 1).values / params.temperature
        if float(values[-2] - values[-1]) <= move:
            return False
    fields = {**vars(params), "top_k": 0}
    kept = [
        int((reference_law(logits, SamplingParams(**{**fields, **edges})) > 0.0).sum())
        for sign in (-1.0, 1.0)
        for edges in [
            {
                "top_p": min(1.0, max(1e-9, params.top_p + sign * move)),
                "min_p": min(1.0, params.min_p * (1.0 - sign * move)),
            }
        ]
        if params.top_p < 1.0 or params.min_p > 0.0
    ]
    return len(set(kept)) <= 1


class LawAfter:
    """Logits of the target after one text and any continuations of it; the text is read once.

    Args:
        prefix: at least one token; with the longest continuation it fits the target's context.
        room: tokens of the longest continuation.
    """

    def __init__(self, target: Target, prefix: Sequence[int], room: int) -> None:
        self._target, self._prefix = target, list(prefix)
        self._cache = target.new_cache(1, len(prefix) + room)
        for start in range(0, len(prefix) - 1, _CHUNK):
            self._read(self._prefix[:-1][start : start + _CHUNK], "none")

    def logits(self, suffix: Sequence[int] = ()) -> Float[Tensor, "v"]:
        """Logits of the token after prefix + suffix."""
        return self._after(suffix, "last")[-1]

    def each_logits(self, suffix: Sequence[int]) -> Float[Tensor, "t v"]:
        """Logits after the prefix and 0, 1, .., all tokens of the suffix."""
        return self._after(suffix, "all")

    def _after(self, suffix: Sequence[int], logits_for: str) -> Tensor:
        self._cache.crop(0, len(self._prefix) - 1)
        logits = self._read([self._prefix[-1], *suffix], logits_for)
        assert logits is not None
        return logits[0]

    @torch.inference_mode()
    def _read(self, ids: Sequence[int], logits_for: str) -> Tensor | None:
        part = torch.tensor([list(ids)], device=self._target.device)
        with torch_on_one_thread(self._target.has_own_threads):
            batch = RowBatch(part, (len(ids),), logits_for=logits_for)
            return self._target.forward(self._cache, batch).logits
