"""Keys and values that a drafter injects from target features, of every slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from blockdraft.cache.base import DraftContext
from blockdraft.cache.kept_memory import TakeMemory
from blockdraft.errors import CapacityError
from blockdraft.kernels.huge_pages import huge_zeros
from blockdraft.layers.block_layout import block_positions

#: Rows that may wait until they are read: projected together they cost a third of what they cost
#: one cycle at a time, and many a cycle drafts nothing.
_MOST_WAITING = 128

#: Features [n, f] and their positions [n] to keys and values, each [l, n, g, d].
Project = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Appended(NamedTuple):
    """The first `lens[i]` feature rows of sequence i, for slot `first_slot` + i at `starts[i]`."""

    features: Tensor
    first_slot: int
    starts: Sequence[int]
    lens: Sequence[int]

    def without(self, slot: int) -> Appended:
        """The same but for the rows of a slot."""
        kept = (0 if self.first_slot + i == slot else n for i, n in enumerate(self.lens))
        return self._replace(lens=tuple(kept))


class KVDraftContext(DraftContext):
    """k and v, each [l, slots, s, g, d]: row t of a slot is made from the features of position t.

    Rows `lens[slot]` and beyond are scratch for the rows of a block, never read as context.
    Whatever a slot held is zeroed when it becomes free, so that a masked row (weight zero) can
    not carry a NaN from one request to another.

    Args:
        project: features and their positions to keys and values of all layers.
        max_len: most context rows of a slot.
        block_len: rows of a drafted block.
        take: where the memory comes from. That of a `KeptMemory` holds anything: only for passes
            that read no row but those that the sequence itself has written.
    Raises: CapacityError if there is not that much memory.
    """

    def __init__(
        self,
        project: Project,
        *,
        num_layers: int,
        num_slots: int,
        max_len: int,
        block_len: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        take: TakeMemory = huge_zeros,
    ) -> None:
        shape = (num_layers, num_slots, max_len + block_len, num_kv_heads, head_dim)
        try:
            self._k = take(shape, dtype, device)
            self._v = take(shape, dtype, device)
        except RuntimeError as error:
            gib = 2 * dtype.itemsize * torch.Size(shape).numel() / 2**30
            raise CapacityError(
                f"a draft context for {num_slots} sequences of {max_len} tokens needs"
                f" {gib:.1f} GiB, more than there is; lower the batch size or the length"
            ) from error
        self.max_len = max_len
        self.lens = [0] * num_slots
        self._used = [0] * num_slots  # rows that may hold something else than zero
        self._project = project
        self._waiting: list[Appended] = []

    @property
    def k(self) -> Tensor:
        """Keys of all that was appended."""
        self._catch_up()
        return self._k

    @property
    def v(self) -> Tensor:
        """Values of all that was appended."""
        self._catch_up()
        return self._v

    @property
    def num_rows(self) -> int:
        """Rows of each slot, scratch included."""
        return self._k.shape[2]

    def append(
        self,
        features: Float[Tensor, "b t f"] | None,
        first_slot: int,
        starts: Sequence[int],
        lens: Sequence[int],
    ) -> None:
        """Take new rows, to be projected in one product with those that wait, and written once.

        `starts[i]` may lie before the rows already there (they are replaced and what follows is
        forgotten), never behind them: a context has no holes.
        """
        assert features is not None, "this drafter needs target features"
        for i, (start, length) in enumerate(zip(starts, lens, strict=True)):
            if start < self.lens[first_slot + i]:
                self._catch_up()  # what is replaced is written before it
            self.extend(first_slot + i, start, length)
        if any(lens):
            self._waiting.append(Appended(features, first_slot, tuple(starts), tuple(lens)))
        if sum(sum(part.lens) for part in self._waiting) > _MOST_WAITING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Write what waits."""
        if self._waiting:
            parts, self._waiting = self._waiting, []
            self._write(parts)

    def extend(self, slot: int, start: int, length: int) -> None:
        """Count rows start..start+length-1 of a slot as context, and forget what follows."""
        assert 0 <= start <= self.lens[slot], (slot, start, self.lens[slot])
        assert start + length <= self.max_len, (slot, start, length, self.max_len)
        self._set_len(slot, start + length)

    def _write(self, parts: Sequence[Appended]) -> None:
        places = [
            (part.first_slot + i) * self.num_rows + position
            for part in parts
            for i, (start, length) in enumerate(zip(part.starts, part.lens, strict=True))
            for position in range(start, start + length)
        ]
        index = torch.tensor(places, device=self._k.device)
        k, v = self._project(valid_rows(parts), index % self.num_rows)
        self._k.flatten(1, 2).index_copy_(1, index, k)
        self._v.flatten(1, 2).index_copy_(1, index, v)

    def write_block(
        self, layer: int, index: Int64[Tensor, "n"], k: Float[Tensor, "n g d"], v: Tensor
    ) -> None:
        """Put block rows into the scratch rows at the flat places `index` (see `block_index`)."""
        self.k[layer].flatten(0, 1).index_copy_(0, index, k)
        self.v[layer].flatten(0, 1).index_copy_(0, index, v)

    def block_index(self, anchors: Sequence[int], block_len: int) -> Int64[Tensor, "b t"]:
        """Flat places (slot * num_rows + position) of one block after each of the first slots.

        Raises: ValueError if a context does not end right before its block.
        """
        self.check_anchors(anchors)
        for slot, anchor in enumerate(anchors):
            self._used[slot] = max(self._used[slot], anchor + block_len)
        # Rows of a slot are positions, so a block's places are its positions, moved to the slot.
        bases = [slot * self.num_rows + anchor for slot, anchor in enumerate(anchors)]
        places = block_positions(torch.tensor(bases), block_len)
        return places.to(self.k.device)

    def check_anchors(self, anchors: Sequence[int]) -> None:
        """Raises: ValueError if a context does not end right before its block."""
        if list(anchors) != self.lens[: len(anchors)]:
            raise ValueError(
                f"blocks start at {list(anchors)}, but the contexts hold"
                f" {self.lens[: len(anchors)]} rows"
            )

    def move(self, src: int, dst: int) -> None:
        length = self.lens[src]
        self.reset(dst)
        self.k[:, dst, :length] = self.k[:, src, :length]
        self.v[:, dst, :length] = self.v[:, src, :length]
        self._set_len(dst, length)
        self.reset(src)

    def reset(self, slot: int) -> None:
        self._set_len(slot, 0)
        self._clear(slot, 0)

    def num_bytes(self) -> int:
        return self._k.nbytes + self._v.nbytes

    def _set_len(self, slot: int, length: int) -> None:
        if length < self.lens[slot]:
            self._clear(slot, length)
        self.lens[slot] = length
        self._used[slot] = max(self._used[slot], length)

    def _clear(self, slot: int, first: int) -> None:
        """Zero what a slot holds from row `first` on."""
        if first:
            self._catch_up()
        else:
            self._waiting = [part for old in self._waiting if any((part := old.without(slot)).lens)]
        self._k[:, slot, first : self._used[slot]] = 0
        self._v[:, slot, first : self._used[slot]] = 0
        self._used[slot] = min(first, self._used[slot])


def valid_rows(parts: Sequence[Appended]) -> Float[Tensor, "n f"]:
    """The feature rows of all sequences one after the other, without padding."""
    rows = [part.features[i, :n] for part in parts for i, n in enumerate(part.lens) if n]
    return rows[0] if len(rows) == 1 else torch.cat(rows)
