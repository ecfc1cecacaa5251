"""What the loop works on: a batch of rows, the models, and what is remembered of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from blockdraft.cache.base import DraftContext, TargetCache
from blockdraft.decoding.clock import Clock
from blockdraft.decoding.load import PlannedCycle
from blockdraft.decoding.row import Row
from blockdraft.drafters.base import Drafter
from blockdraft.targets.base import Target
from blockdraft.verification.budget import DraftBudget


@dataclass
class DecodeState:
    """Row i of `rows` lives in slot i of the cache and of the draft context: no holes, ever.

    Attributes:
        budget: fits drafts to the load; None always drafts as much as there is room for.
        planned: what it decided for the cycle that runs.
    """

    target: Target
    drafter: Drafter | None
    cache: TargetCache
    context: DraftContext | None
    clock: Clock
    prefill_chunk_len: int = 512
    record_layer_ids: tuple[int, ...] = ()
    rows: list[Row] = field(default_factory=list)
    budget: DraftBudget | None = None
    planned: PlannedCycle | None = None

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Layers whose outputs a pass must give: for the drafter, or to be recorded."""
        if self.record_layer_ids:
            return self.record_layer_ids
        return self.drafter.target_layer_ids if self.drafter else ()

    def record(self, slot: int, features: Tensor | None, row: int, num: int) -> None:
        """Keep the first `num` feature rows of sequence `row` of a pass with the row in `slot`."""
        if self.record_layer_ids and num:
            assert features is not None
            self.rows[slot].features.append(features[row, :num].clone())

    def remove_finished(self) -> list[Row]:
        """Take finished rows out; the last rows move into their slots."""
        finished = [row for row in self.rows if row.is_finished]
        for slot in reversed(range(len(self.rows))):
            if self.rows[slot].is_finished:
                self._remove(slot)
        return finished

    def _remove(self, slot: int) -> None:
        last = len(self.rows) - 1
        if self.rows[slot].finish_reason == "error":
            self.cache.clear(slot)
        self.cache.crop(slot, 0)
        if self.context is not None:
            self.context.reset(slot)
        if slot != last:
            self.cache.move(last, slot)
            if self.context is not None:
                self.context.move(last, slot)
            self.rows[slot] = self.rows[last]
        self.rows.pop()

    def check_integrity(self) -> None:
        """Every cache row belongs to a committed token; the anchor is still pending."""
        for slot, row in enumerate(self.rows):
            cached, committed = self.cache.lens[slot], len(row.token_ids)
            assert cached == committed - 1, (slot, cached, committed)
        assert not any(self.cache.lens[len(self.rows) :]), self.cache.lens


def anchors(rows: Sequence[Row]) -> list[int]:
    """The last committed token of each row."""
    return [row.token_ids[-1] for row in rows]
