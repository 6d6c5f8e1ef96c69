"""`LearnedCost`: t(M, context), the seconds of a target pass over M rows, corrected by the passes themselves.

The length policy needs to know what a longer draft costs on this machine, at this hour. It starts from a profile where
`paceline tune` made one and from a rough shape elsewhere; every pass is a measurement, so none is spent on measuring.
Not for reports: `benchmarks/cost_curve.py` measures with care.
"""

from bisect import bisect_right
from collections.abc import Callable
from math import exp, hypot, log

Prior = Callable[[float, float], float]
"""(rows, mean context) to seconds, or to anything proportional to them."""

CPU_BALANCE, GPU_BALANCE = 8.0, 200.0
"""Rows at which a pass spends as long on arithmetic as on reading weights, where nothing was measured."""

_LEVEL, _SHAPE = 0.1, 0.05
"""Weight of the newest pass in how fast the machine is now, and in how passes compare with each other: the machine's
mood changes within seconds and is the same for all passes, the shape of the curve is not."""
_NEWEST = 0.2
"""Weight of the newest draft step."""
_OUTLIER = 2.0
"""A pass slower than this many times what was expected counts as this many times: a stolen core is no property of M."""
_SETTLING = 3
"""The smallest of so many measurements is the first that counts: weights are read from disk only once."""
_KNOTS = tuple(1 << power for power in range(14))


def roofline(balance: float) -> Prior:
    """The prior without a profile, in one-row passes: reading weights takes 1, arithmetic a share for every row."""
    return lambda rows, _context: hypot(1.0, rows / balance)


class LearnedCost:
    """Seconds of target passes and draft steps: a prior, times how fast the machine is, times a learned shape.

    The shape is a factor for each power of two of rows, on straight lines between; a pass moves the two around it. So
    passes over 9 and over 11 rows teach the same line, and the price of one more row does not hang on two samples.

    Args:
        prior: what a pass is expected to cost; only its shape matters once a pass was seen.

    Attributes:
        draft_prior: what a draft step over so many rows is expected to cost; None takes it for free until some were
            seen.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        self.draft_prior: Callable[[int, float], float] | None = None
        self._prior = prior or roofline(CPU_BALANCE)
        self._level = 0.0
        self._num_passes = 0
        self._shape = [0.0] * len(_KNOTS)
        self._weight = [0.0] * len(_KNOTS)
        self._draft_step, self._draft = _Average(), _Average()

    def __call__(self, rows: float, context: float = 0) -> float:
        """Seconds of a pass; the prior's own number when no pass was seen yet (only ratios matter then)."""
        left, right, share = _place(rows)
        shape = (1 - share) * self._shape[left] + share * self._shape[right]
        return self._prior(rows, context) * exp(self._level + shape)

    def observe(self, rows: int, seconds: float, context: float = 0) -> None:
        """A pass over `rows` rows with a mean context of `context` took `seconds` (none on a coarse clock)."""
        if seconds <= 0:
            return
        self._num_passes += 1
        if self._num_passes <= _SETTLING:
            level = log(seconds / self._prior(rows, context))
            self._level = level if self._num_passes == 1 else min(level, self._level)
            return
        surprise = log(seconds / self(rows, context))
        surprise = min(max(surprise, -log(_OUTLIER)), log(_OUTLIER))
        left, right, share = _place(rows)
        for knot, weight in ((left, 1 - share), (right, share)):
            self._weight[knot] += weight
            self._shape[knot] += weight * max(_SHAPE, 1 / (1 + self._weight[knot])) * surprise
        self._level += _LEVEL * surprise

    def draft_seconds(self, num_requests: int, context: float = 0) -> float:
        """Seconds of one draft step shared by `num_requests`."""
        return self._drafting(self._draft_step.value, num_requests, context)

    def whole_draft_seconds(self, num_requests: int, context: float = 0) -> float:
        """Seconds of all steps of a draft, however deep, shared by `num_requests`."""
        return self._drafting(self._draft.value, num_requests, context)

    def observe_draft(self, num_steps: int, seconds: float, num_requests: int = 1, context: float = 0) -> None:
        """Drafts of `num_steps` steps for `num_requests` requests took `seconds`."""
        if num_steps:
            draft = seconds / self._draft_shape(num_requests, context)
            self._draft.learn(draft)
            self._draft_step.learn(draft / num_steps)

    def _drafting(self, scale: float | None, num_requests: int, context: float) -> float:
        if scale is None:
            return self.draft_prior(num_requests, context) if self.draft_prior else 0.0
        return self._draft_shape(num_requests, context) * scale

    def _draft_shape(self, num_requests: int, context: float) -> float:
        return self.draft_prior(num_requests, context) if self.draft_prior else 1.0


def _place(rows: float) -> tuple[int, int, float]:
    """The knots around `rows`, and how far it lies between them."""
    right = min(bisect_right(_KNOTS, rows), len(_KNOTS) - 1)
    low, high = _KNOTS[right - 1], _KNOTS[right]
    return right - 1, right, min(1.0, (rows - low) / (high - low))


class _Average:
    """A moving average of seconds; `value` is None until it has settled."""

    def __init__(self) -> None:
        self._seen = 0
        self._average = float("inf")

    @property
    def value(self) -> float | None:
        return self._average if self._seen >= _SETTLING else None

    def learn(self, newest: float) -> None:
        """One more measurement."""
        self._seen += 1
        if self._seen <= _SETTLING:
            self._average = min(self._average, newest)
        else:
            self._average += _NEWEST * (min(newest, _OUTLIER * self._average) - self._average)
