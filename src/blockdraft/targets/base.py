"""What the decode loop needs of a target: a pass over new rows, features, embedding and head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from blockdraft.cache.base import TargetCache
from blockdraft.types import TargetInfo


@dataclass(frozen=True)
class RowBatch:
    """New rows for a contiguous range of cache slots.

    Attributes:
        input_ids: token ids [b, t]; entries at and beyond a row's length are padding.
        lens: valid rows of each sequence, 1..t.
        first_slot: sequence i of the batch lives in cache slot first_slot + i.
        logits_for: "all" rows, the "last" valid row of each sequence, or "none".
        layer_ids: layers whose outputs are wanted as features (0-based, before the final norm).
        wants_best: the greatest logit's id is enough where logits are asked for; a target that can
            find it without writing the logits out may give `best` in their place.
        takes_ragged: logits may come without padding (`PassOutput.ragged`).
    """

    input_ids: Int64[Tensor, "b t"]
    lens: tuple[int, ...]
    first_slot: int = 0
    logits_for: str = "all"
    layer_ids: tuple[int, ...] = ()
    wants_best: bool = False
    takes_ragged: bool = False


@dataclass(frozen=True)
class PassOutput:
    """What a pass gives. Entries of padding rows mean nothing.

    Attributes:
        logits: [b, t, v] ("all"), [b, 1, v] ("last") or None.
        features: [b, t, len(layer_ids) * m], or None if no layer was asked for.
        best: in place of logits, the greatest one's id (the lowest id on ties) of each row, and
            whether any logit of that row is not finite.
        isa: instruction set of the native kernels that made the float32 logits, to draw tokens with
            as well; None if PyTorch made them.
        ragged: in place of logits, those of the valid rows of all sequences one after the other;
            only of a batch that takes them so.
    """

    logits: Float[Tensor, "b r v"] | None
    features: Float[Tensor, "b t f"] | None
    best: tuple[Int64[Tensor, "b r"], Bool[Tensor, "b r"]] | None = None
    isa: str | None = None
    ragged: Float[Tensor, "n v"] | None = None


class Target(ABC):
    """A frozen language model. Never changed; the drafter borrows its embedding and head.

    `has_own_threads`: passes run on threads of their own, beside which PyTorch's should rest.
    `computes_padding`: a pass costs all its places [b, t]; else its valid rows alone.
    """

    info: TargetInfo
    device: torch.device
    has_own_threads: bool = False
    computes_padding: bool = True

    @abstractmethod
    def new_cache(self, num_slots: int, max_len: int) -> TargetCache:
        """An empty cache for `num_slots` sequences of up to `max_len` rows (tokens).

        Implementations add room for the padding rows of a pass themselves.
        """

    @abstractmethod
    def forward(self, cache: TargetCache, batch: RowBatch) -> PassOutput:
        """Run new rows after the cached ones; afterwards `cache.lens` counts the valid new rows.

        Row j of sequence i stands at position `cache.lens[slot] + j` (before the call) and sees
        the cached rows and rows 0..j of its own sequence.
        """

    @abstractmethod
    def embed(self, ids: Int64[Tensor, "..."]) -> Float[Tensor, "... m"]:
        """Raw rows of the embedding table (no scale)."""

    @abstractmethod
    def head(self, hidden: Float[Tensor, "n m"]) -> Float[Tensor, "n v"]:
        """Apply the output head (no final norm, no multiplier, no soft-cap)."""

    @abstractmethod
    def head_rows(
        self, ids: Int64[Tensor, "e"]
    ) -> tuple[Float[Tensor, "e m"], Float[Tensor, "e"] | None]:
        """Rows of the head for some tokens, and their biases if it has any: copies.

        Made for loading, not for the loop: where weights are packed, they are unpacked first.
        """
