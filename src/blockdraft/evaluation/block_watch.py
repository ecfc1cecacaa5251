"""A block drafter watched from within: what trace and candidates have in common."""

from __future__ import annotations

from typing import Any

from blockdraft.cache.base import DraftContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.block_model import DraftedBlock
from blockdraft.drafters.config import MAX_CANDIDATES


class BlockWatch(Drafter):
    """Drafts what `inner` drafts, with as many candidates as there can be, to be looked at."""

    def __init__(self, inner: BlockDrafter) -> None:
        self.inner, self.name = inner, inner.name
        self.num_draft_tokens = inner.num_draft_tokens
        self.target_layer_ids = inner.target_layer_ids

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return self.inner.new_context(num_slots, max_len)

    def draft(self, context: DraftContext, batch: DraftBatch) -> DraftedBlock:
        return self.inner.model.draft(context, batch, MAX_CANDIDATES)
