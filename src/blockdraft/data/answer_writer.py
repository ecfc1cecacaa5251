"""Takes answers as they come and puts them on disk: lines at once, or shard by shard."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor

from blockdraft.data.answers import Answer, AnswerFile
from blockdraft.data.shard_writer import ShardWriter
from blockdraft.errors import CapacityError

#: Bytes of a state's number on disk (bfloat16).
NUM_BYTES = 2


class DiskFullError(CapacityError):
    """The disk, and not memory, has too little room."""


class AnswerWriter:
    """Writes answers; those with hidden states wait until a shard is full.

    Args:
        answers: the answers file.
        shards: where hidden states go; None keeps none.
        shard_samples: answers in a shard.
        reserve_bytes: disk space that stays free.
    """

    def __init__(
        self,
        answers: AnswerFile,
        shards: ShardWriter | None,
        *,
        shard_samples: int,
        reserve_bytes: int,
    ) -> None:
        self._answers, self._shards = answers, shards
        self._shard_samples, self._reserve_bytes = shard_samples, reserve_bytes
        self._waiting: list[tuple[Answer, Tensor]] = []
        self._waiting_bytes = 0

    def add(self, answer: Answer, features: Tensor | None) -> None:
        """Take one answer.

        Raises: DiskFullError where it would not fit on the disk; all earlier ones are saved then.
        """
        size = 0 if features is None else features.numel() * NUM_BYTES
        self._need_room(size)
        if self._shards is None:
            self._answers.append([answer])
            return
        assert features is not None, "shards need hidden states"
        self._waiting.append((answer, features))
        self._waiting_bytes += size
        if len(self._waiting) >= self._shard_samples:
            self.flush()

    def flush(self) -> None:
        """Write what waits; nothing if that is nothing."""
        if self._shards is None or not self._waiting:
            return
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._shards.write([answer for answer, _ in waiting], [part for _, part in waiting])

    def _need_room(self, size: int) -> None:
        folder = self._answers.path.parent
        free = free_bytes(folder)
        if free - self._waiting_bytes - size < self._reserve_bytes:
            self.flush()
            raise DiskFullError(
                f"{folder}: {free / 2**30:.1f} GiB of disk are free, of which "
                f"{self._reserve_bytes / 2**30:.1f} are kept as reserve (features.reserve_gib); "
                "all answers so far are saved: free some space and run the same command again"
            )


def free_bytes(folder: Path) -> int:
    """Free space of the disk that a folder is on."""
    return shutil.disk_usage(folder).free
