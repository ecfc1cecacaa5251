"""Look up what repeats, draft the rest: one drafter before another, row by row.

Where a text goes on as it did before, copying is right more often than any model of this size, and
costs nothing; elsewhere there is nothing to copy. Rows that the lookup has a continuation for take
it; the others take the block drafter's, whose pass is left out where all rows have one, and which
is told where it runs that the rows with a continuation have no use for a draft.

Which of the two drafts is decided by committed tokens alone, before anything is drawn, so q is the
one of the drafter that drafted, and verification is as exact as with either.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockdraft.cache.base import DraftContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.types import Proposal, TargetHandle


class LookupContext(DraftContext):
    """The contexts of both drafters."""

    def __init__(self, lookup: DraftContext, inner: DraftContext) -> None:
        self.lookup, self.inner = lookup, inner

    def append(
        self,
        features: Float[Tensor, "b t f"] | None,
        first_slot: int,
        starts: Sequence[int],
        lens: Sequence[int],
    ) -> None:
        for part in (self.lookup, self.inner):
            part.append(features, first_slot, starts, lens)

    def move(self, src: int, dst: int) -> None:
        for part in (self.lookup, self.inner):
            part.move(src, dst)

    def reset(self, slot: int) -> None:
        for part in (self.lookup, self.inner):
            part.reset(slot)

    def num_bytes(self) -> int:
        return self.lookup.num_bytes() + self.inner.num_bytes()


@dataclass(frozen=True)
class LookedUp:
    """A proposal for the rows that repeat, and what `inner` drafted for `rest` if some do not."""

    found: Proposal
    rest: DraftBatch
    drafted: Any


class LookupFirst(Drafter):
    """Proposes `lookup`'s continuation, or where it has none, what `inner` drafts.

    Args:
        lookup: drafts nothing for a row that does not repeat; its drafts are point masses.
        inner: drafts the rest. Its name, length and layers are those of the whole.
    """

    def __init__(self, lookup: Drafter, inner: Drafter) -> None:
        self.lookup, self.inner = lookup, inner
        self.name = f"{inner.name}+{lookup.name}"
        self.num_draft_tokens = inner.num_draft_tokens
        self.target_layer_ids = inner.target_layer_ids
        self.has_model = inner.has_model

    @property
    def innermost(self) -> Drafter:
        return self.inner.innermost

    def with_innermost(self, inner: Drafter) -> LookupFirst:
        return LookupFirst(self.lookup, self.inner.with_innermost(inner))

    def bind(self, target: TargetHandle) -> None:
        for part in (self.lookup, self.inner):
            part.bind(target)

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "name": self.name, "lookup": self.lookup.describe()}

    def new_context(self, num_slots: int, max_len: int) -> LookupContext:
        return LookupContext(
            self.lookup.new_context(num_slots, max_len), self.inner.new_context(num_slots, max_len)
        )

    def look_up(self, context: DraftContext, batch: DraftBatch) -> Proposal:
        assert isinstance(context, LookupContext)
        found = self.lookup.select(self.lookup.draft(context.lookup, batch), batch)
        return dataclasses.replace(found, looked_up=_rows_with_any(found))

    def draft(self, context: DraftContext, batch: DraftBatch) -> LookedUp:
        assert isinstance(context, LookupContext)
        found = self.look_up(context, batch) if batch.found is None else batch.found
        lens = tuple(0 if n else most for n, most in zip(found.lens, batch.max_lens, strict=True))
        rest = dataclasses.replace(batch, max_lens=lens, found=None)
        return LookedUp(found, rest, self.inner.draft(context.inner, rest) if any(lens) else None)

    def select(self, drafted: LookedUp, batch: DraftBatch) -> Proposal:
        if drafted.drafted is None:
            return drafted.found
        return _merged(drafted.found, self.inner.select(drafted.drafted, drafted.rest))


def _merged(found: Proposal, drafted: Proposal) -> Proposal:
    """`found` in the rows where it has anything, `drafted` in the others."""
    takes = [n > 0 for n in found.lens]
    if not any(takes):
        return drafted
    looked_up = found.looked_up
    lens = tuple(a or b for a, b in zip(found.lens, drafted.lens, strict=True))
    width = max(lens)
    rows = torch.tensor(takes, device=drafted.ids.device)
    ids = torch.where(rows[:, None], _widened(found.ids, width), _widened(drafted.ids, width))
    if drafted.q_ids is None or drafted.q_probs is None:
        return Proposal(ids, lens, looked_up=looked_up)
    # A point mass at the draft: the same id in every place of the support, all mass on the first.
    q_ids = torch.where(rows[:, None, None], ids[..., None], _widened(drafted.q_ids, width))
    mass = torch.zeros_like(_widened(drafted.q_probs, width))
    mass[..., 0] = 1.0
    q_probs = torch.where(rows[:, None, None], mass, _widened(drafted.q_probs, width))
    return Proposal(ids, lens, q_ids, q_probs, looked_up)


def _rows_with_any(found: Proposal) -> frozenset[int]:
    return frozenset(i for i, n in enumerate(found.lens) if n)


def _widened(x: Int64[Tensor, "b k ..."], width: int) -> Int64[Tensor, "b w ..."]:
    """Zeros behind the slots that there are; slots beyond `width` are no row's."""
    if x.shape[1] >= width:
        return x[:, :width]
    more = x.new_zeros(x.shape[0], width - x.shape[1], *x.shape[2:])
    return torch.cat([x, more], dim=1)
