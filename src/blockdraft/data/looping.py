"""Answers that go round in circles: a small target does so often, and a drafter learns it fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Longest cycle looked for, in tokens.
MAX_PERIOD = 96

#: An answer loops when it ends in this many tokens of one cycle, ...
MIN_TAIL_LEN = 48

#: ... which goes round at least this often, the first time included; ...
MIN_ROUNDS = 3

#: ... or when so small a share of its runs of 4 tokens differ, and it is no short answer.
MIN_DISTINCT_SHARE = 0.35
MIN_LEN = 96


def is_looping(token_ids: Sequence[int]) -> bool:
    """Whether an answer (its end token included or not) repeats itself to its end, or mostly.

    The end token is looked past: a loop that happens to end is still one.
    """
    ids = np.asarray(token_ids)
    return any(_ends_in_cycle(part) for part in (ids, ids[:-1])) or (
        len(ids) >= MIN_LEN and distinct_share(token_ids) < MIN_DISTINCT_SHARE
    )


def distinct_share(token_ids: Sequence[int], width: int = 4) -> float:
    """Distinct runs of `width` tokens over all of them; 1 for an answer shorter than that."""
    runs = [tuple(token_ids[i : i + width]) for i in range(len(token_ids) - width + 1)]
    return len(set(runs)) / len(runs) if runs else 1.0


def _ends_in_cycle(ids: np.ndarray) -> bool:
    """Whether the last MIN_TAIL_LEN tokens and MIN_ROUNDS rounds of some period are one cycle."""
    for period in range(1, min(MAX_PERIOD, len(ids) // MIN_ROUNDS) + 1):
        tail_len = max(MIN_TAIL_LEN, MIN_ROUNDS * period)
        if tail_len > len(ids):
            continue
        tail = ids[-tail_len:]
        if ids[-1] == ids[-1 - period] and bool((tail[period:] == tail[:-period]).all()):
            return True
    return False
