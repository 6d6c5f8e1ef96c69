"""`LearnedCost`: t(M, context), the seconds of a target pass over M rows, corrected by the passes themselves.

The length policy needs to know what a longer draft costs on this machine, at this hour. It starts from a profile where
`paceline tune` made one and from a rough slope elsewhere; every pass is a measurement, so none is spent on measuring.
Not for reports: `benchmarks/cost_curve.py` measures with care.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

Prior = Callable[[int, float], float]
"""(rows, mean context) to seconds, or to anything proportional to them."""

NEWEST = 0.2
"""Weight of the newest pass in a moving average."""
OUTLIER = 2.0
"""A pass slower than this many times what was expected counts as this many times: a stolen core is no property of M."""
PRIOR_SLOPE = 0.05
"""What one more row is taken to cost, as a share of a one-row pass, where nothing was measured."""


def rough_slope(rows: int, context: float) -> float:
    """The prior without a profile, in one-row passes."""
    return 1 + PRIOR_SLOPE * (rows - 1)


class LearnedCost:
    """Seconds of target passes and draft steps: a prior times learned factors, one factor for each number of rows.

    Between row counts that were seen factors lie on straight lines, beyond them the nearest holds.

    Args:
        prior: what a pass is expected to cost; only its shape matters once passes were seen.

    Attributes:
        draft_prior: what a draft step over so many rows is expected to cost; None takes it for free until one was seen.
    """

    def __init__(self, prior: Prior = rough_slope) -> None:
        self.draft_prior: Prior | None = None
        self._prior = prior
        self._rows: list[int] = []
        self._factors: dict[int, float] = {}
        self._draft_step: float | None = None

    def draft_seconds(self, num_requests: int, context: float = 0) -> float:
        """Seconds of one draft step shared by `num_requests`."""
        if self._draft_step is None:
            return self.draft_prior(num_requests, context) if self.draft_prior else 0.0
        return self._draft_shape(num_requests, context) * self._draft_step

    def observe_draft(self, num_steps: int, seconds: float, num_requests: int = 1, context: float = 0) -> None:
        """Drafts of `num_steps` steps for `num_requests` requests took `seconds`."""
        if num_steps:
            step = seconds / num_steps / self._draft_shape(num_requests, context)
            self._draft_step = _moved(self._draft_step, step)

    def observe(self, rows: int, seconds: float, context: float = 0) -> None:
        """A pass over `rows` rows with a mean context of `context` took `seconds`."""
        if rows not in self._factors:
            insort(self._rows, rows)
        self._factors[rows] = _moved(self._factors.get(rows), seconds / self._prior(rows, context))

    def __call__(self, rows: int, context: float = 0) -> float:
        """Seconds of a pass; the prior's own number when no pass was seen yet (only ratios matter then)."""
        return self._prior(rows, context) * self._factor(rows)

    def _draft_shape(self, num_requests: int, context: float) -> float:
        return self.draft_prior(num_requests, context) if self.draft_prior else 1.0

    def _factor(self, rows: int) -> float:
        if not self._rows:
            return 1.0
        right = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        high = self._rows[right]
        if high <= rows or right == 0:
            return self._factors[high]
        low = self._rows[right - 1]
        share = (rows - low) / (high - low)
        return (1 - share) * self._factors[low] + share * self._factors[high]


def _moved(average: float | None, newest: float) -> float:
    """The moving average after one more measurement."""
    return newest if average is None else average + NEWEST * (min(newest, OUTLIER * average) - average)
