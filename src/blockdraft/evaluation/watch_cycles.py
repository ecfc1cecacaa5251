"""Stand-ins for a target and a drafter that do the same and keep what each cycle looked at.

The loop knows nothing of them: without a trace nothing is watched, and nothing costs anything.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from blockdraft.cache.base import DraftContext, TargetCache
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.drafters.block_drafter import BlockDrafter
from blockdraft.drafters.block_model import DraftedBlock
from blockdraft.drafters.dflash2 import DFlash2Drafter
from blockdraft.evaluation.block_watch import BlockWatch
from blockdraft.targets.base import PassOutput, RowBatch, Target
from blockdraft.types import Proposal

#: Candidates kept of a drafter whose method names no number itself.
SHOWN_CANDIDATES = 16


class LogitsWatch(Target):
    """A target whose passes always write their logits; `logits` are those of the last one."""

    def __init__(self, inner: Target) -> None:
        self.inner, self.info, self.device = inner, inner.info, inner.device
        self.has_own_threads = inner.has_own_threads
        self.computes_padding = inner.computes_padding
        self.logits: Float[Tensor, "b r v"] | None = None

    def new_cache(self, num_slots: int, max_len: int) -> TargetCache:
        return self.inner.new_cache(num_slots, max_len)

    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        output = self.inner.forward(cache, dataclasses.replace(batch, wants_best=False))
        self.logits = output.logits
        return output

    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        return self.inner.embed(ids)

    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        return self.inner.head(hidden)

    def head_rows(
        self, ids: Int64[Tensor, "d"]
    ) -> tuple[Float[Tensor, "d m"], Float[Tensor, "d"] | None]:
        return self.inner.head_rows(ids)


@dataclass(frozen=True)
class SeenLattice:
    """What one block was chosen from.

    Attributes:
        ids: token ids of each slot's candidates, the best by its own score first.
        unary: score of each on its own.
        pair: what a predecessor adds (slot, predecessor, candidate); None if slots are independent.
    """

    ids: Int64[Tensor, "k c"]
    unary: Float32[Tensor, "k c"]
    pair: Float32[Tensor, "k c c"] | None


class LatticeWatch(Drafter):
    """Drafts what `drafter` drafts, for one row, and keeps the proposal and its candidates."""

    def __init__(self, drafter: Drafter) -> None:
        block = drafter.innermost
        self._block = _LatticeOfBlock(block) if isinstance(block, BlockDrafter) else None
        self.inner = drafter if self._block is None else drafter.with_innermost(self._block)
        self.name, self.num_draft_tokens = drafter.name, drafter.num_draft_tokens
        self.target_layer_ids = drafter.target_layer_ids
        self.has_model = drafter.has_model
        self.proposal: Proposal | None = None

    @property
    def lattice(self) -> SeenLattice | None:
        """None where the cycle's drafts were not chosen from candidates."""
        return None if self._block is None else self._block.lattice

    def look_up(self, context: DraftContext, batch: DraftBatch) -> Proposal | None:
        return self.inner.look_up(context, batch)

    def forget(self) -> None:
        """A cycle without a draft must not show the one before."""
        self.proposal = None
        if self._block is not None:
            self._block.lattice = None

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return self.inner.new_context(num_slots, max_len)

    def draft(self, context: DraftContext, batch: DraftBatch) -> Any:
        return self.inner.draft(context, batch)

    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        self.proposal = self.inner.select(drafted, batch)
        return self.proposal


class _LatticeOfBlock(BlockWatch):
    """Keeps what the block was chosen from, for one row."""

    def __init__(self, inner: BlockDrafter) -> None:
        super().__init__(inner)
        self.lattice: SeenLattice | None = None

    def select(self, drafted: DraftedBlock, batch: DraftBatch) -> Proposal:
        self.lattice = _lattice(self.inner, drafted, batch)
        return self.inner.select(drafted, batch)


def _lattice(drafter: BlockDrafter, drafted: DraftedBlock, batch: DraftBatch) -> SeenLattice | None:
    """The first row's; None where its scores are not numbers (then nothing is drafted)."""
    model, num, pair = drafter.model, SHOWN_CANDIDATES, None
    if isinstance(drafter, DFlash2Drafter):
        num = model.config.selector_top_k
    values, rows = drafted.best(num)
    ids, unary = model.vocab.tokens(rows)[0].cpu(), model.transform(values)[0].cpu()
    if isinstance(drafter, DFlash2Drafter):
        pair = drafter.lattice(drafted, batch.anchor_ids).scores[0].cpu() - unary[:, None]
    scores = unary if pair is None else pair
    return SeenLattice(ids, unary, pair) if bool(torch.isfinite(scores).all()) else None
