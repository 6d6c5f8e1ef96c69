"""`LearnedCost`: t(M), the seconds of a target pass over M rows, learned from the passes themselves.

The length policy needs to know what a longer draft costs on this machine, at this hour. Every pass is a measurement, so
none is spent on measuring. Not for reports: `benchmarks/cost_curve.py` measures with care.
"""

from bisect import bisect_left, insort

NEWEST = 0.2
"""Weight of the newest pass in a row count's moving average."""
OUTLIER = 2.0
"""A pass slower than this many times the average counts as this many times: a stolen core is no property of M."""
PRIOR_SLOPE = 0.05
"""What one more row is taken to cost, as a share of a one-row pass, where nothing was measured beside a point."""


class LearnedCost:
    """t(M) by straight lines between learned averages, and by a prior slope beyond them."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._average: dict[int, float] = {}
        self._draft_step = 0.0

    def draft_seconds(self, num_requests: int) -> float:
        """Seconds of one draft step; shared by the requests that draft, so their number is no matter."""
        return self._draft_step

    def observe_draft(self, num_steps: int, seconds: float) -> None:
        """Drafts of `num_steps` steps took `seconds`."""
        if num_steps:
            step = seconds / num_steps
            self._draft_step += (NEWEST if self._draft_step else 1.0) * (step - self._draft_step)

    def observe(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows took `seconds`."""
        if rows not in self._average:
            insort(self._rows, rows)
            self._average[rows] = seconds
            return
        average = self._average[rows]
        self._average[rows] += NEWEST * (min(seconds, OUTLIER * average) - average)

    def __call__(self, rows: int) -> float:
        """Seconds of a pass over `rows` rows; 1 when no pass was seen yet (only ratios matter then)."""
        if not self._rows:
            return 1 + PRIOR_SLOPE * (rows - 1)
        right = bisect_left(self._rows, rows)
        if right == len(self._rows) or (self._rows[right] != rows and right == 0):
            nearest = self._rows[min(right, len(self._rows) - 1)]
            return self._average[nearest] * (1 + PRIOR_SLOPE * (rows - 1)) / (1 + PRIOR_SLOPE * (nearest - 1))
        if self._rows[right] == rows:
            return self._average[rows]
        low, high = self._rows[right - 1], self._rows[right]
        share = (rows - low) / (high - low)
        return self._average[low] + share * (self._average[high] - self._average[low])
