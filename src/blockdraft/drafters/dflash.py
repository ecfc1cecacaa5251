"""DFlash: every slot of the block is predicted on its own, in one pass (arXiv 2602.06036)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float32
from torch import Tensor

from blockdraft.cache.base import DraftContext
from blockdraft.drafters.base import DraftBatch
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.block_model import DraftedBlock, sampling_temperatures, without_refused
from blockdraft.layers.walk import draw_slots
from blockdraft.types import Proposal

#: A sampled slot is drawn from the softmax over this many best tokens: exact, since that is the q
#: that is reported, and all but complete.
SUPPORT = 64


class DFlashDrafter(BlockDrafter):
    """Slots are independent given the context, so sampling all of them at once is exact."""

    name = "dflash"

    def draft(self, context: DraftContext, batch: DraftBatch) -> DraftedBlock:
        is_greedy = all(t is None for t in sampling_temperatures(batch))
        return self.model.draft(context, batch, 1 if is_greedy else SUPPORT)

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        temperatures = sampling_temperatures(batch)
        if all(t is None for t in temperatures):
            return self._select_best(drafted, batch)
        return self._sample(drafted, batch, temperatures)

    def _select_best(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        values, rows = drafted.best(1)
        ids = self.model.vocab.tokens(rows[..., 0])
        return Proposal(ids, self.model.draft_lens(batch, _finite_rows(values)))

    def _sample(
        self, drafted: DraftedBlock, batch: DraftBatch, temperatures: Sequence[float | None]
    ) -> Proposal:
        assert batch.uniforms is not None, "sampled rows need uniforms"
        k = drafted.hidden.shape[1]
        values, rows = drafted.best(SUPPORT)
        ids = self.model.vocab.tokens(rows)
        scores = self.model.transform(values)
        is_finite = _finite_rows(scores)
        lens = self.model.draft_lens(batch, is_finite)
        scores = without_refused(scores, is_finite)
        chosen, q = draw_slots(scores, temperatures, batch.uniforms[:, :k])
        return Proposal(ids.gather(-1, chosen[..., None])[..., 0], lens, ids, q)


def _finite_rows(scores: Float32[Tensor, "b k c"]) -> list[bool]:
    is_finite: list[bool] = torch.isfinite(scores.sum((1, 2))).tolist()
    return is_finite
