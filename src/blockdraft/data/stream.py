"""An endless stream of packed batches, the same for any number of processes, and resumable.

The order of the samples is a new permutation in every pass over the data, drawn from (seed, pass);
anchors are drawn from (seed, pass, sample). So a position in the stream is one number, and what a
step holds does not depend on how its sequences are dealt to processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from blockdraft.data.anchors import anchor_range, draw_anchors
from blockdraft.data.collate import BlockBatch, collate
from blockdraft.data.feature_shards import FeatureSample
from blockdraft.errors import ConfigError


class SampleSource(Protocol):
    """Samples by number (feature shards, or recomputed on the target)."""

    def batch(self, indices: Sequence[int]) -> list[FeatureSample]:
        """The samples at these places."""
        ...


@dataclass(frozen=True, kw_only=True)
class StreamSizes:
    """How a step is made up. Sequences of a step are dealt out evenly (see `BatchRecipe`).

    `teacher_width`: last columns of the features that are the teacher's (see `collate`).
    """

    block_size: int
    num_anchors: int
    sequences_per_step: int
    sequences_per_pass: int
    teacher_width: int = 0


class BlockStream:
    """Batches of one process.

    Args:
        source: where samples come from.
        indices: the samples to train on; each must have an anchor (see `usable`).
        rank, num_processes: which share of every step is this process's.
    Raises: ConfigError if there is nothing to train on, or a step cannot be dealt out.
    """

    def __init__(
        self,
        source: SampleSource,
        indices: Sequence[int],
        sizes: StreamSizes,
        *,
        seed: int = 0,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        if not indices:
            raise ConfigError("no sample is left to train on; regenerate more answers")
        together = sizes.sequences_per_pass * num_processes
        if sizes.sequences_per_step % together:
            raise ConfigError(
                f"{sizes.sequences_per_step} sequences a step cannot be dealt to {num_processes}"
                f" process(es) in passes of {sizes.sequences_per_pass}"
            )
        self.source, self.indices, self.sizes = source, list(indices), sizes
        self.seed, self.rank, self.num_processes = seed, rank, num_processes
        self.num_passes = sizes.sequences_per_step // together
        self.step = self._pass = 0
        self._orders: dict[int, np.ndarray] = {}

    def __iter__(self) -> BlockStream:
        return self

    def __next__(self) -> BlockBatch:
        each = self.sizes.sequences_per_pass
        start = (self._pass * self.num_processes + self.rank) * each
        first = self.step * self.sizes.sequences_per_step + start
        self._pass += 1
        if self._pass == self.num_passes:
            self.step, self._pass = self.step + 1, 0
        return self._batch(range(first, first + each))

    def state_dict(self) -> dict[str, Any]:
        """The position, between two steps."""
        assert self._pass == 0, "the state of a stream is taken between steps"
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self._pass = int(state["step"]), 0

    def _batch(self, places: Sequence[int]) -> BlockBatch:
        epochs = [place // len(self.indices) for place in places]
        chosen = [
            self._order(e)[p % len(self.indices)] for e, p in zip(epochs, places, strict=True)
        ]
        samples = self.source.batch([self.indices[i] for i in chosen])
        anchors = [
            draw_anchors(
                np.random.default_rng((self.seed, 1, epoch, int(i))),
                sample.prompt_len,
                len(sample.token_ids),
                self.sizes.num_anchors,
            )
            for sample, epoch, i in zip(samples, epochs, chosen, strict=True)
        ]
        return collate(samples, anchors, self.sizes.block_size, self.sizes.teacher_width)

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1}
            rng = np.random.default_rng((self.seed, 0, epoch))
            self._orders[epoch] = rng.permutation(len(self.indices))
        return self._orders[epoch]


def usable(prompt_lens: Sequence[int], num_tokens: Sequence[int]) -> list[int]:
    """Samples with room for a block: an answer of two tokens or more."""
    lens = enumerate(zip(prompt_lens, num_tokens, strict=True))
    return [i for i, (prompt, total) in lens if len(anchor_range(prompt, total))]
