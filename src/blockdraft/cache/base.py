"""What is remembered of each sequence between passes: by the target, and by a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


class TargetCache(ABC):
    """Keys and values of a fixed number of slots; `lens[slot]` rows of each are valid."""

    lens: list[int]
    max_len: int

    @abstractmethod
    def crop(self, slot: int, length: int) -> None:
        """Forget the rows of a slot at and beyond `length`."""

    @abstractmethod
    def move(self, src: int, dst: int) -> None:
        """Move a slot's rows to another slot; the source becomes empty."""

    def clear_after(self, slot: int, length: int) -> None:
        """As `crop`, where the rows that go may hold non-finite numbers."""
        self.crop(slot, length)

    @abstractmethod
    def clear(self, slot: int) -> None:
        """Empty a slot that may hold non-finite rows."""

    @abstractmethod
    def num_bytes(self) -> int:
        """Memory the cache holds, in bytes."""


class DraftContext(ABC):
    """What a drafter remembers of each slot between cycles. Owned by the loop, not the drafter."""

    @abstractmethod
    def append(
        self,
        features: Float[Tensor, "b t f"] | None,
        first_slot: int,
        starts: Sequence[int],
        lens: Sequence[int],
    ) -> None:
        """Store the first `lens[i]` feature rows of sequence i, from position `starts[i]` on."""

    @abstractmethod
    def move(self, src: int, dst: int) -> None:
        """Move a slot's rows to another slot; the source becomes empty."""

    @abstractmethod
    def reset(self, slot: int) -> None:
        """Empty a slot."""

    @abstractmethod
    def num_bytes(self) -> int:
        """Memory the context holds, in bytes."""


class NoContext(DraftContext):
    """For drafters that look at token ids only."""

    def append(
        self,
        features: Float[Tensor, "b t f"] | None,
        first_slot: int,
        starts: Sequence[int],
        lens: Sequence[int],
    ) -> None:
        return

    def move(self, src: int, dst: int) -> None:
        return

    def reset(self, slot: int) -> None:
        return

    def num_bytes(self) -> int:
        return 0
