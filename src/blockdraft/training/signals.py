"""SIGTERM and Ctrl-C: noticed, so that the loop can finish its step, save and end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Whether someone asked for the end; `reason` names the signal."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def ask(self, reason: str) -> None:
        """Ask for the end; the first reason stays."""
        self.reason = self.reason or reason

    def __bool__(self) -> bool:
        return self.reason is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside, the first SIGTERM or SIGINT only asks; the second does what it always did.

    Outside the main thread signals cannot be handled, and none are.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, _: FrameType | None) -> None:
        received = signal.Signals(number)
        request.ask(received.name)
        signal.signal(received, before[received])

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, handle)
    try:
        yield request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
