"""How far a long run is: share done, rate, and how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable


class Progress:
    """Says a line now and then.

    Args:
        num_total: units of work.
        log: receives the lines.
        every_s: least seconds between two of them.
    """

    def __init__(
        self,
        num_total: int,
        log: Callable[[str], None],
        *,
        every_s: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_total, self._log, self._every_s, self._now = num_total, log, every_s, now
        self._started = self._said = now()
        self._num_done = self._num_timed = 0

    def skip(self, num: int) -> None:
        """Units that an earlier run had finished: they say nothing about the rate."""
        self._num_done += num

    def advance(self, num: int, what: str) -> None:
        """Units that were done just now."""
        self._num_done += num
        self._num_timed += num
        now = self._now()
        is_last = self._num_done >= self._num_total
        if now - self._said >= self._every_s or is_last:
            self._said = now
            rate = self._num_timed / max(now - self._started, 1e-9)
            left = (
                "" if not rate else f", {duration((self._num_total - self._num_done) / rate)} left"
            )
            self._log(f"{self._num_done}/{self._num_total} answers, {rate:.2f}/s{left} ({what})")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as a person writes them."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"
