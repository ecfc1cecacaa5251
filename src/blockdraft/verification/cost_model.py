"""What a pass costs against its rows, learnt from the passes' own times.

A Kalman filter on (time without rows, time of one more row). Between two passes the machine may
have become slower or faster as a whole, which both numbers share, and a little else, which they do
not: so a run of passes of one size moves the whole line and leaves its slope, which they say
nothing of, where it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Relative errors of one measured time: of a quiet machine's, and of what others run beside it.
_NOISE = 0.1
#: Relative changes from one pass to the next: of both numbers together, and of each alone.
_DRIFT_TOGETHER, _DRIFT_ALONE = 0.05, 0.01
#: A time this many deviations above what was expected is taken to be so far above: others ran.
_MOST_DEVIATIONS = 2.0
#: Relative error of a number beyond which not knowing it better changes nothing.
_UNKNOWN = 1.0
#: Share of a pass's time that not knowing the time of a row may leave open.
_SLOPE_ERROR = 0.15
#: Times outside are no times of a pass: of a stopped clock, or of a stopped machine.
_SHORTEST_MS, _LONGEST_MS = 1e-6, 1e9


@dataclass
class PassCost:
    """Time of a pass as `fixed_ms + row_ms * rows`; any unit may stand for ms.

    Attributes:
        num_seen: passes that it was learnt from; with none there is no line.
    """

    fixed_ms: float = 0.0
    row_ms: float = 0.0
    num_seen: int = 0
    _fixed_var: float = 0.0
    _row_var: float = 0.0
    _covariance: float = 0.0

    def ms(self, rows: float) -> float:
        """Expected time of a pass over so many rows."""
        return self.fixed_ms + self.row_ms * rows

    def is_slope_known(self, rows: int) -> bool:
        """Whether what a row costs is known well enough to say what passes of so many cost."""
        error_ms = math.sqrt(self._row_var) * rows
        return self.num_seen > 1 and error_ms < _SLOPE_ERROR * self.ms(rows)

    def note(self, rows: float, ms: float) -> None:
        """Learn from one pass; what is no time, or of no rows, is left out."""
        if not (rows > 0 and _SHORTEST_MS < ms < _LONGEST_MS):
            return
        if not self.num_seen:
            self._begin(rows, ms)
        else:
            self._drift()
        self.num_seen += 1
        expected = self.ms(rows)
        # How much a surprise at this size says of either number.
        to_fixed = self._fixed_var + rows * self._covariance
        to_row = self._covariance + rows * self._row_var
        spread = to_fixed + rows * to_row + (_NOISE * expected) ** 2
        surprise = min(ms - expected, _MOST_DEVIATIONS * math.sqrt(spread))
        self.fixed_ms += to_fixed / spread * surprise
        self.row_ms += to_row / spread * surprise
        self._fixed_var -= to_fixed * to_fixed / spread
        self._row_var -= to_row * to_row / spread
        self._covariance -= to_fixed * to_row / spread
        self._keep_positive(rows)

    def _begin(self, rows: float, ms: float) -> None:
        """Half of the first time is taken to be without rows, for want of anything better."""
        self.fixed_ms, self.row_ms = ms / 2, ms / 2 / rows
        self._fixed_var, self._row_var = self.fixed_ms**2, self.row_ms**2

    def _drift(self) -> None:
        both = _DRIFT_TOGETHER**2
        # Always, also where a row costs next to nothing: else the line would become rigid.
        self._fixed_var += (both + _DRIFT_ALONE**2) * self.fixed_ms**2
        if self._row_var < (_UNKNOWN * self.row_ms) ** 2:
            self._row_var += (both + _DRIFT_ALONE**2) * self.row_ms**2
            self._covariance += both * self.fixed_ms * self.row_ms

    def _keep_positive(self, rows: float) -> None:
        """Neither number is negative; what one of them lacks the other has too much."""
        least = _SHORTEST_MS * 1e-3
        if self.row_ms < least:
            self.fixed_ms += rows * (self.row_ms - least)
            self.row_ms = least
        if self.fixed_ms < 0:
            self.row_ms = max(least, self.row_ms + self.fixed_ms / rows)
            self.fixed_ms = 0.0
        self._fixed_var, self._row_var = max(self._fixed_var, 0.0), max(self._row_var, 0.0)
