"""What the decode loop needs of a drafter. One file a method; drafters never import drafters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Float64, Int64
from torch import Tensor

from blockdraft.cache.base import DraftContext
from blockdraft.drafters.alarm import AcceptanceAlarm
from blockdraft.types import Proposal, TargetHandle


@dataclass(frozen=True)
class DraftBatch:
    """The rows to draft for: sequence i lives in slot i.

    Attributes:
        anchor_ids: last committed token x_a of each row.
        positions: position a of each anchor; features exist for positions 0..a-1.
        token_ids: every committed token of each row, prompt included (the last one is x_a).
        max_lens: most tokens worth drafting for each row (its limit may be near); may be 0.
        temperatures: of each row; below GREEDY_TEMPERATURE the draft is greedy, its q one-hot.
        uniforms: draws in [0, 1) for token a+1+j of each row; None when every row is greedy.
        found: what `look_up` gave for these rows, if it was called before, with as much of each
            row's length as is to be verified; rows with any are not drafted for.
    """

    anchor_ids: Int64[Tensor, "b"]
    positions: tuple[int, ...]
    token_ids: Sequence[Sequence[int]]
    max_lens: tuple[int, ...]
    temperatures: tuple[float, ...]
    uniforms: Float64[Tensor, "b k"] | None = None
    found: Proposal | None = None


class Drafter(ABC):
    """Proposes up to `num_draft_tokens` tokens after each anchor.

    `draft` is the expensive pass; `select` turns what it returned into a Proposal. They are two
    calls so that the clock can tell them apart.
    """

    name: str
    num_draft_tokens: int
    target_layer_ids: tuple[int, ...] = ()
    has_model: bool = True  # without one all that it proposes comes from `look_up`

    @cached_property
    def alarm(self) -> AcceptanceAlarm | None:
        """Watches a drafter that reads the target's features; others may have nothing to draft."""
        if not self.target_layer_ids:
            return None
        return AcceptanceAlarm(str(self.describe().get("source", self.name)))

    @property
    def innermost(self) -> Drafter:
        """The drafter behind the lookups, which drafts the rest; itself if there are none."""
        return self

    def with_innermost(self, inner: Drafter) -> Drafter:
        """The same lookups before another drafter, say one that watches `innermost`."""
        return inner

    @abstractmethod
    def new_context(self, num_slots: int, max_len: int) -> DraftContext:
        """An empty context for `num_slots` sequences of up to `max_len` tokens."""

    def look_up(self, context: DraftContext, batch: DraftBatch) -> Proposal | None:
        """Continuations that the texts themselves hold, at next to no cost; None: none are sought.

        A drafter that finds some says how many tokens each rests on (`match_lens`).
        """
        return None

    @abstractmethod
    def draft(self, context: DraftContext, batch: DraftBatch) -> Any:
        """One pass over the blocks of the batch; returns what `select` needs."""

    @abstractmethod
    def select(self, drafted: Any, batch: DraftBatch) -> Proposal:
        """Choose one path per row and say the exact q it was drawn from."""

    def bind(self, target: TargetHandle) -> None:
        """Borrow the target's embedding and head; called once, before anything else.

        Raises: CheckpointError, naming both models, if this drafter cannot serve `target`.
        """
        return

    def describe(self) -> dict[str, Any]:
        """What this drafter is, for provenance; checkpoints add where they are from and a hash."""
        return {"name": self.name, "num_draft_tokens": self.num_draft_tokens}
