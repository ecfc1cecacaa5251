"""Passes of one shape: a row's logits do not depend on how many rows are checked with it.

In bfloat16 a product of 1 row and one of 8 rows may round differently, and near ties plain and
speculative decoding may then part. Here every decoding pass is one sequence of `ROWS` rows that
reads cached rows in whole blocks of `KEYS`: the same kernels run with the same shapes in the same
order whether a row is decoded alone or checked in a block, so both round alike.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from blockdraft.cache.base import TargetCache
from blockdraft.cache.target_kv import KVCache
from blockdraft.targets.base import PassOutput, RowBatch, Target
from blockdraft.targets.decoder import DecoderTarget

#: Rows of every decoding pass.
ROWS = 8

#: Cached rows are read in whole blocks of this many: the block of PyTorch's CPU attention kernel,
#: in which masked keys add exact zeros.
KEYS = 512


class ExactTarget(Target):
    """A DecoderTarget whose decoding passes all have one shape. Slower in batches."""

    def __init__(self, inner: DecoderTarget) -> None:
        self.inner, self.info, self.device = inner, inner.info, inner.device

    def new_cache(self, num_slots: int, max_len: int) -> KVCache:
        return self.inner.new_cache(num_slots, max_len, round_to=KEYS)

    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        return self.inner.embed(ids)

    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        return self.inner.head(hidden)

    def head_rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e m"], Float[Tensor, "e"] | None]:
        return self.inner.head_rows(ids)

    @torch.inference_mode()
    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        """Prompts run alone and unpadded; decoding rows in passes of `ROWS`."""
        outputs = [self._run_one(cache, batch, i) for i in range(len(batch.lens))]
        logits, features = zip(*((out.logits, out.features) for out in outputs), strict=True)
        return PassOutput(_stack(logits), _stack(features))

    def _run_one(self, cache: TargetCache, batch: RowBatch, i: int) -> PassOutput:
        assert isinstance(cache, KVCache)
        slot, length = batch.first_slot + i, batch.lens[i]
        ids = batch.input_ids[i : i + 1, :length]
        if batch.logits_for != "all":
            one = RowBatch(ids, (length,), slot, batch.logits_for, batch.layer_ids)
            return self.inner.forward(cache, one)
        parts = []
        for start in range(0, length, ROWS):
            chunk = ids[:, start : start + ROWS]
            valid = chunk.shape[1]
            padded = F.pad(chunk, (0, ROWS - valid))
            one = RowBatch(padded, (valid,), slot, "all", batch.layer_ids)
            end = cache.lens[slot] + ROWS
            out = self.inner.run(cache, one, last=-(-end // KEYS) * KEYS)
            cache.lens[slot] += valid
            parts.append(PassOutput(_cut(out.logits, valid), _cut(out.features, valid)))
        return PassOutput(
            _join([part.logits for part in parts]), _join([part.features for part in parts])
        )


def _cut(x: Tensor | None, length: int) -> Tensor | None:
    return None if x is None else x[:, :length]


def _join(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present, 1) if present else None


def _stack(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    """Sequences of different lengths, padded with zeros to the longest."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    longest = max(part.shape[1] for part in present)
    return torch.cat([F.pad(part, (0, 0, 0, longest - part.shape[1])) for part in present])
