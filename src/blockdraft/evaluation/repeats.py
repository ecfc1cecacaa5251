"""How much a text repeats itself: a target that loops flatters every drafter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def longest_repeat(token_ids: Sequence[int]) -> int:
    """Tokens of the longest run that stands at two places of the text (they may overlap)."""
    data = np.asarray(token_ids, dtype=np.int32).tobytes()
    size, num = 4, len(token_ids)

    def is_repeated(length: int) -> bool:
        seen: set[bytes] = set()
        for start in range(num - length + 1):
            run = data[start * size : (start + length) * size]
            if run in seen:
                return True
            seen.add(run)
        return False

    low, high = 0, max(0, num - 1)  # a run of `low` is repeated, one of `high + 1` is not
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_repeated(middle) else (low, middle - 1)
    return low


def distinct_ngrams(token_ids: Sequence[int], n: int = 4) -> float | None:
    """Share of different ones among all runs of n tokens; None if the text is shorter."""
    runs = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return len(set(runs)) / len(runs) if runs else None
