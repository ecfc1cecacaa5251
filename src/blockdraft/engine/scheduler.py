"""Which request runs when: plain Python over numbers, no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Scheduler:
    """First come, first served; a free place is taken at the next cycle.

    Attributes:
        max_batch_size: most requests that run at once.
    """

    max_batch_size: int
    _waiting: deque[int] = field(default_factory=deque)
    _running: set[int] = field(default_factory=set)

    def add(self, ids: Iterable[int]) -> None:
        """Queue requests."""
        self._waiting.extend(ids)

    def next_to_admit(self) -> list[int]:
        """Requests that may join now; they count as running from here on."""
        free = self.max_batch_size - len(self._running)
        joining = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        self._running.update(joining)
        return joining

    def finish(self, request_id: int) -> None:
        """A running request ended."""
        self._running.remove(request_id)

    def cancel(self, request_id: int) -> None:
        """Forget a request that waits; one that runs is the runner's to end."""
        if request_id in self._waiting:
            self._waiting.remove(request_id)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running
