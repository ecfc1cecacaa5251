"""Text of a growing sequence: whole characters, cut at the stop string that completes first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class PieceDecoder(Protocol):
    """Turns token ids into text piece by piece, never splitting a character."""

    def feed(self, token_id: int) -> str:
        """The characters this token completes; may be empty."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class TextTracker:
    """Follows one request's text.

    `pending` of the text may still turn out to belong to a stop string: it is held back from
    `take`, and released when the match fails or the request ends.
    """

    def __init__(self, decoder: PieceDecoder, stops: Sequence[str], include_stop: bool) -> None:
        self._decoder = decoder
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._taken_len = 0
        self.text = ""
        self.is_stopped = False

    def feed(self, token_ids: Iterable[int]) -> int | None:
        """Add tokens; returns the index of the token that completed a stop string, if one did."""
        for i, token_id in enumerate(token_ids):
            piece = self._decoder.feed(token_id)
            if piece and self._add(piece):
                return i
        return None

    def finish(self) -> bool:
        """The request ended: nothing is held back. Whether the last characters completed a stop."""
        if self.is_stopped:
            return False
        is_stop = self._add(self._decoder.flush())
        self.is_stopped = True
        return is_stop

    def take(self) -> str:
        """New text that is safe to show."""
        end = len(self.text) if self.is_stopped else len(self.text) - self._held_len()
        piece = self.text[self._taken_len : end]
        self._taken_len = max(end, self._taken_len)
        return piece

    def _add(self, piece: str) -> bool:
        # Only the new piece can complete a stop string: look back no further than its length.
        seen_len = len(self.text)
        self.text += piece
        match = self._earliest(seen_len)
        if match is None:
            return False
        start, end = match
        self.text = self.text[: end if self._include_stop else start]
        self.is_stopped = True
        return True

    def _earliest(self, seen_len: int) -> tuple[int, int] | None:
        found = []
        for stop in self._stops:
            start = self.text.find(stop, max(0, seen_len - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start))
        if not found:
            return None
        end, start = min(found)
        return start, end

    def _held_len(self) -> int:
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
