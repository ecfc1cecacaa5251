"""Runs requests to their end: joins, cycles, leaves. The only part that touches the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from blockdraft.decoding.clock import Clock
from blockdraft.decoding.prefill import admit
from blockdraft.decoding.row import Row
from blockdraft.decoding.state import DecodeState
from blockdraft.decoding.step import cycle
from blockdraft.drafters.base import Drafter
from blockdraft.engine.scheduler import Scheduler
from blockdraft.kernels.threads import torch_on_one_thread
from blockdraft.targets.base import Target
from blockdraft.verification.budget import DraftBudget


@dataclass(frozen=True, kw_only=True)
class RunnerLimits:
    """Sizes of a run. `prefill_chunk_len`: tokens of a pass, padding included where it costs."""

    max_batch_size: int = 8
    prefill_chunk_len: int = 512


class Runner:
    """Keeps the batch full from a queue of rows.

    Cache and draft context are made for the rows at hand: as many slots and as long as they need.

    Args:
        budget: fits drafts to the load, with what it learnt in earlier runs of the same models;
            None drafts as much as there is room for.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        rows: Sequence[Row],
        limits: RunnerLimits,
        record_layer_ids: tuple[int, ...] = (),
        budget: DraftBudget | None = None,
    ) -> None:
        self._rows, clock = list(rows), Clock(target.device)
        started = clock.mark()
        num_slots = max(1, min(limits.max_batch_size, len(rows)))
        max_len = max((row.limit_len for row in rows), default=1)
        # A row at its limit is padded to the widest block of the batch: its cache needs that room.
        padding = 0 if drafter is None else drafter.num_draft_tokens
        self._scheduler = Scheduler(num_slots)
        self._scheduler.add(range(len(rows)))
        with torch_on_one_thread(target.has_own_threads):
            self.state = DecodeState(
                target=target,
                drafter=drafter,
                cache=target.new_cache(num_slots, max_len + padding),
                context=None if drafter is None else drafter.new_context(num_slots, max_len),
                clock=clock,
                prefill_chunk_len=limits.prefill_chunk_len,
                record_layer_ids=record_layer_ids,
                budget=budget,
            )
        self._ids = {id(row): i for i, row in enumerate(rows)}
        for row in self._rows[:num_slots]:
            row.mark = started  # making the cache is part of the first rows' time

    def run(self) -> Iterator[list[int]]:
        """Advance cycle by cycle; yields the indices of the rows that changed."""
        while not self._scheduler.is_idle:
            joining = [self._rows[i] for i in self._scheduler.next_to_admit()]
            if joining:
                with self._threads():
                    admit(self.state, joining)
                    changed = self._after(joining)
                yield changed
            if self.state.rows:
                with self._threads():
                    rows = list(self.state.rows)
                    cycle(self.state)
                    changed = self._after(rows)
                yield changed

    def _threads(self) -> AbstractContextManager[None]:
        return torch_on_one_thread(self.state.target.has_own_threads)

    def cancel(self, index: int) -> None:
        """End a request before its time; its place is free from the next cycle on."""
        row = self._rows[index]
        self._scheduler.cancel(index)
        if not row.is_finished:
            row.finish_reason = "cancelled"
            row.timing = self.state.clock.since(row.mark or self.state.clock.mark())
            if any(row is other for other in self.state.rows):
                self._leave()

    def _after(self, changed: Sequence[Row]) -> list[int]:
        self._leave()
        return [self._ids[id(row)] for row in changed]

    def _leave(self) -> None:
        for row in self.state.remove_finished():
            assert row.mark is not None
            row.timing = self.state.clock.since(row.mark)
            self._scheduler.finish(self._ids[id(row)])
        self.state.check_integrity()
