"""A target whose logits are not finite for one request: the one that says a certain token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from blockdraft.cache.base import TargetCache
from blockdraft.targets.base import PassOutput, RowBatch, Target

#: Makes one row [v] of logits non-finite, in place.
Spoil = Callable[[Tensor], object]

SPOILS: dict[str, Spoil] = {
    "all NaN": lambda row: row.fill_(torch.nan),
    "one NaN": lambda row: row[7:8].fill_(torch.nan),
    "one +inf": lambda row: row[7:8].fill_(torch.inf),
    "all -inf": lambda row: row.fill_(-torch.inf),
}


class PoisonedTarget(Target):
    """Runs another target; rows whose input is `trigger` get spoiled logits and NaN features."""

    def __init__(self, inner: Target, trigger: int, spoil: Spoil) -> None:
        self.inner, self.info, self.device = inner, inner.info, inner.device
        self.trigger, self.spoil = trigger, spoil

    def new_cache(self, num_slots: int, max_len: int) -> TargetCache:
        return self.inner.new_cache(num_slots, max_len)

    def embed(self, ids: Tensor) -> Tensor:
        return self.inner.embed(ids)

    def head(self, hidden: Tensor) -> Tensor:
        return self.inner.head(hidden)

    def head_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.inner.head_rows(ids)

    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        out = self.inner.forward(cache, dataclasses.replace(batch, wants_best=False))
        for i, length in enumerate(batch.lens):
            hits = (batch.input_ids[i, :length] == self.trigger).nonzero()[:, 0].tolist()
            for j in hits:
                if out.features is not None:
                    out.features[i, j] = torch.nan
                if out.logits is not None and batch.logits_for == "all":
                    self.spoil(out.logits[i, j])
                elif out.logits is not None and j == length - 1:
                    self.spoil(out.logits[i, 0])
        return out
