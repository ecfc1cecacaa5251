"""Says so, once, when a drafter's drafts are never accepted.

Nothing else would: the text stays exact, only slower than without a drafter.
"""

from __future__ import annotations

import warnings

#: Cycles in a row without one accepted draft after which something is wrong. A drafter that gets
#: one token in ten right has such a run once in 850 times.
NUM_CYCLES = 64


class AcceptanceAlarm:
    """Counts cycles without an accepted draft; of all requests that one drafter serves.

    Args:
        drafter: what it is called in the message.
    """

    def __init__(self, drafter: str) -> None:
        self._drafter, self._num_refused, self._has_warned = drafter, 0, False

    def note(self, drafted_len: int, accepted_len: int) -> None:
        """One row of one cycle; cycles without a draft do not count."""
        if accepted_len:
            self._num_refused = 0
        elif drafted_len:
            self._num_refused += 1
        if self._num_refused == NUM_CYCLES and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"none of the drafts of {self._drafter!r} was accepted in {NUM_CYCLES} cycles in a"
                " row (said once): the text is right, but slower than without a drafter. Usual"
                " causes: not trained, another target's, wrong taps or mask token, prompts without"
                " the chat template it was trained with. `blockdraft doctor` finds which;"
                " --no-drafter decodes without",
                stacklevel=2,
            )
