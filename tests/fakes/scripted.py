"""A drafter that is right exactly where a script says, and a target that is a table of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blockdraft.cache.base import DraftContext, NoContext, TargetCache
from blockdraft.drafters.base import DraftBatch, Drafter
from blockdraft.targets.base import PassOutput, RowBatch, Target
from blockdraft.types import Proposal, TargetInfo

#: pattern(cycle_number, slot_in_block) -> whether that drafted token is the oracle's.
Pattern = Callable[[int, int], bool]

accept_all: Pattern = lambda cycle, j: True  # noqa: E731
accept_none: Pattern = lambda cycle, j: False  # noqa: E731


def accept_first(count: int) -> Pattern:
    """The first `count` drafts of each block are right, the next is wrong."""
    return lambda cycle, j: j < count


class ScriptedDrafter(Drafter):
    """SD(pattern): knows the oracle continuation of each prompt.

    Args:
        oracles: prompt ids -> the tokens the target gives after them.
    """

    name = "scripted"

    def __init__(
        self,
        oracles: Mapping[tuple[int, ...], Sequence[int]],
        pattern: Pattern,
        num_draft_tokens: int,
        vocab_size: int,
        target_layer_ids: tuple[int, ...] = (),
    ) -> None:
        self.oracles, self.pattern = dict(oracles), pattern
        self.num_draft_tokens, self.vocab_size = num_draft_tokens, vocab_size
        self.target_layer_ids = target_layer_ids
        self.num_drafts = 0

    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        return NoContext()

    def draft(self, context: DraftContext, batch: DraftBatch) -> Any:
        self.num_drafts += 1
        return [self._block(tokens) for tokens in batch.token_ids]

    def _block(self, tokens: Sequence[int]) -> list[int]:
        prompt = next(
            p for p in self.oracles if tuple(tokens[: len(p)]) == p and len(tokens) > len(p)
        )
        done = len(tokens) - len(prompt)
        block = []
        for j in range(self.num_draft_tokens):
            rest = self.oracles[prompt][done + j : done + j + 1]
            right = rest[0] if rest else 0
            good = self.pattern(self.num_drafts - 1, j)
            block.append(right if good else (right + 1) % self.vocab_size)
        return block

    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        lens = tuple(min(n, self.num_draft_tokens) for n in batch.max_lens)
        return Proposal(torch.tensor(drafted), lens)


class TableCache(TargetCache):
    """Remembers the token ids of each slot."""

    def __init__(self, num_slots: int, max_len: int) -> None:
        self.ids: list[list[int]] = [[] for _ in range(num_slots)]
        self.lens, self.max_len = [0] * num_slots, max_len

    def crop(self, slot: int, length: int) -> None:
        self.lens[slot] = length
        del self.ids[slot][length:]

    def move(self, src: int, dst: int) -> None:
        self.ids[dst], self.ids[src] = self.ids[src], []
        self.lens[dst], self.lens[src] = self.lens[src], 0

    def clear(self, slot: int) -> None:
        self.crop(slot, 0)

    def num_bytes(self) -> int:
        return 0


class TableTarget(Target):
    """ST(table): logits of the next token from the last two tokens.

    Args:
        logits: [v, v, v]; logits[x, y] follow the tokens x, y (x = y at the first position).
    """

    def __init__(self, logits: Tensor, end_ids: tuple[int, ...] = ()) -> None:
        self.logits, self.device = logits, torch.device("cpu")
        v = logits.shape[-1]
        self.info = TargetInfo(
            name="table",
            source="tests",
            fingerprint="table",
            model_type="table",
            vocab_size=v,
            hidden_size=1,
            num_layers=1,
            max_context_len=4096,
            end_ids=end_ids,
            dtype=logits.dtype,
            num_parameters=logits.numel(),
        )

    def new_cache(self, num_slots: int, max_len: int) -> TableCache:
        return TableCache(num_slots, max_len)

    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        assert isinstance(cache, TableCache)
        b, t = batch.input_ids.shape
        pairs = torch.zeros(2, b, t, dtype=torch.long)
        for i, (row, length) in enumerate(zip(batch.input_ids.tolist(), batch.lens, strict=True)):
            ids = cache.ids[batch.first_slot + i]
            start = len(ids)
            ids.extend(row[:length])
            pairs[0, i, :length] = torch.tensor((ids[:1] + ids)[start : start + length])
            pairs[1, i, :length] = torch.tensor(row[:length])
            cache.lens[batch.first_slot + i] += length
        out = self.logits[pairs[0], pairs[1]]
        if batch.logits_for == "none":
            return PassOutput(None, None)
        if batch.logits_for == "last":
            last = torch.tensor(batch.lens) - 1
            out = out[torch.arange(b), last][:, None]
        return PassOutput(out, None)

    def embed(self, ids: Tensor) -> Tensor:
        raise AssertionError("a table has no embedding")

    def head(self, hidden: Tensor) -> Tensor:
        raise AssertionError("a table has no head")

    def head_rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        raise AssertionError("a table has no head")
