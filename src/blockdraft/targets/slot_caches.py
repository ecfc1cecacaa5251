"""One transformers cache for each sequence, with every row kept so that it can be cropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockdraft.cache.base import TargetCache


class SlotCaches(TargetCache):
    """A growing transformers cache per slot.

    Sliding layers keep all their rows too (the attention mask hides the old ones): a cache that
    had dropped rows beyond the window could not go back to where the window began.
    """

    def __init__(self, new: Callable[[], Any], num_slots: int, max_len: int) -> None:
        self._new = new
        self._slots = [new() for _ in range(num_slots)]
        self.lens = [0] * num_slots
        self.max_len = max_len

    def slot(self, index: int) -> Any:
        """The transformers cache of a slot."""
        return self._slots[index]

    def crop(self, slot: int, length: int) -> None:
        assert 0 <= length <= self.lens[slot], (slot, length, self.lens[slot])
        if length == 0:
            self._slots[slot] = self._new()
        elif length < self.lens[slot]:
            self._slots[slot].crop(length - self.lens[slot])
        self.lens[slot] = length

    def move(self, src: int, dst: int) -> None:
        if src != dst:
            self._slots[dst], self._slots[src] = self._slots[src], self._new()
            self.lens[dst], self.lens[src] = self.lens[src], 0

    def clear(self, slot: int) -> None:
        self._slots[slot] = self._new()
        self.lens[slot] = 0

    def num_bytes(self) -> int:
        tensors = (
            tensor
            for cache in self._slots
            for layer in cache.layers
            for tensor in (layer.keys, layer.values)
        )
        # A cropped cache is a view: what it holds is the storage behind it.
        return sum(t.untyped_storage().nbytes() for t in tensors if t is not None)
