"""A lookup before another drafter: who drafts which row, what is skipped, which q is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from blockdraft.cache.base import DraftContext, NoContext
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.drafters.lookup_first import LookupContext, LookupFirst
from blockdraft.drafters.ngram import NgramDrafter
from blockdraft.types import Proposal
from tests.drafters.tiny import batch_of

REPEATING, NEW = [5, 6, 7, 8, 5, 6], [1, 2, 3, 4]


class Block(Drafter):
    """Drafts 90, 91, .. with or without a q, and counts its passes."""

    name = "block"
    num_draft_tokens = 3
    target_layer_ids = (1,)

    def __init__(self, has_q: bool = False) -> None:
        self.has_q, self.num_passes = has_q, 0

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return NoContext()

    def draft(self, context: DraftContext, batch: DraftBatch) -> int:
        assert isinstance(context, NoContext)
        self.num_passes += 1
        return len(batch.anchor_ids)

    def select(self, drafted: int, batch: DraftBatch) -> Proposal:
        ids = torch.tensor([[90, 91, 92]] * drafted)
        lens = tuple(min(3, most) for most in batch.max_lens)
        if not self.has_q:
            return Proposal(ids, lens)
        q_ids = torch.stack([ids, ids + 5], -1)
        return Proposal(ids, lens, q_ids, torch.full((drafted, 3, 2), 0.5))


def propose(drafter: Drafter, *texts: list[int], most: Sequence[int] | None = None) -> Proposal:
    batch = batch_of([t[-1] for t in texts], [len(t) - 1 for t in texts], width=3)
    lens = tuple(most or [3] * len(texts))
    asked: dict[str, Any] = vars(batch) | {"token_ids": list(texts), "max_lens": lens}
    batch = DraftBatch(**asked)
    context = drafter.new_context(len(texts), 32)
    return drafter.select(drafter.draft(context, batch), batch)


class Seen(Block):
    """Keeps what each of its rows may draft."""

    def draft(self, context: DraftContext, batch: DraftBatch) -> int:
        self.asked = batch.max_lens
        return super().draft(context, batch)

    def select(self, drafted: int, batch: DraftBatch) -> Proposal:
        assert batch.max_lens == self.asked
        return super().select(drafted, batch)


def test_rows_that_repeat_are_not_drafted_for() -> None:
    block = Seen()
    propose(LookupFirst(NgramDrafter(3, min_n=2), block), REPEATING, NEW, REPEATING, most=[3, 2, 1])
    assert block.asked == (0, 2, 0)


def test_another_drafter_takes_the_place_behind_the_lookup() -> None:
    block, other = Block(), Block(has_q=True)
    lookup = NgramDrafter(3, min_n=2)
    both = LookupFirst(lookup, block)
    assert both.innermost is block
    assert block.innermost is block
    assert block.with_innermost(other) is other
    changed = both.with_innermost(other)
    assert (changed.lookup, changed.innermost, both.innermost) == (lookup, other, block)
    assert propose(changed, NEW).q_ids is not None
    twice = LookupFirst(lookup, both)
    assert twice.innermost is block
    assert twice.with_innermost(other).innermost is other


def test_each_row_takes_its_own() -> None:
    block = Block()
    proposal = propose(LookupFirst(NgramDrafter(3, min_n=2), block), REPEATING, NEW)
    assert proposal.ids.tolist() == [[7, 8, 5], [90, 91, 92]]
    assert proposal.lens == (3, 3)
    assert proposal.looked_up == {0}
    assert proposal.q_ids is None
    assert block.num_passes == 1


@pytest.mark.parametrize(("texts", "num"), [([REPEATING], 0), ([REPEATING] * 2, 0), ([NEW], 1)])
def test_the_pass_is_left_out_where_every_row_repeats(texts: list[list[int]], num: int) -> None:
    block = Block()
    proposal = propose(LookupFirst(NgramDrafter(3, min_n=2), block), *texts)
    assert block.num_passes == num
    assert proposal.looked_up == (set() if num else set(range(len(texts))))


def test_rows_that_draft_nothing_need_no_pass() -> None:
    block = Block()
    drafter = LookupFirst(NgramDrafter(3, min_n=2), block)
    assert propose(drafter, REPEATING, NEW, most=[3, 0]).lens == (3, 0)
    assert block.num_passes == 0


def test_a_row_that_repeats_has_a_point_mass_in_the_others_shape() -> None:
    drafter = LookupFirst(NgramDrafter(2, min_n=2), Block(has_q=True))
    proposal = propose(drafter, REPEATING, NEW)
    assert proposal.lens == (2, 3)
    assert proposal.q_ids is not None
    assert proposal.q_probs is not None
    assert proposal.q_ids.shape == proposal.q_probs.shape == (2, 3, 2)
    assert proposal.looked_up == {0}
    assert proposal.ids[0, :2].tolist() == [7, 8]
    assert proposal.q_ids[0, :2].tolist() == [[7, 7], [8, 8]]
    assert proposal.q_probs[0].tolist() == [[1.0, 0.0]] * 3
    assert proposal.q_ids[1].tolist() == [[90, 95], [91, 96], [92, 97]]
    assert proposal.q_probs[1].tolist() == [[0.5, 0.5]] * 3


def test_both_contexts_follow_the_slots() -> None:
    calls: list[tuple[str, str, int]] = []

    class Noted(NoContext):
        def __init__(self, name: str) -> None:
            self.name = name

        def move(self, src: int, dst: int) -> None:
            calls.append((self.name, "move", dst))

        def reset(self, slot: int) -> None:
            calls.append((self.name, "reset", slot))

        def num_bytes(self) -> int:
            return 3

    context = LookupContext(Noted("a"), Noted("b"))
    context.append(None, 0, [0], [0])
    context.move(2, 1)
    context.reset(2)
    assert calls == [("a", "move", 1), ("b", "move", 1), ("a", "reset", 2), ("b", "reset", 2)]
    assert context.num_bytes() == 6


def test_it_says_what_it_is_made_of() -> None:
    drafter = LookupFirst(NgramDrafter(3, min_n=2), Block())
    assert (drafter.name, drafter.target_layer_ids) == ("block+ngram", (1,))
    assert drafter.describe()["name"] == "block+ngram"
    assert drafter.describe()["lookup"]["name"] == "ngram"
