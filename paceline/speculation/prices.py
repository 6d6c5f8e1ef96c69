"""`Prices`: what a target pass and a draft cost, in seconds; what every decision about drafts reads.

`LearnedPrices` start from a profile or from bytes read, and every step corrects them: each pass is a measurement, so
none is spent on measuring. `FixedPrices` never change: for simulators, replays and tests. Not for reports:
`benchmarks/cost_curve.py` measures with care.
"""

from bisect import bisect_right
from collections.abc import Callable
from math import ceil, exp, floor, hypot, inf, log, log2
from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.speculation.outcome import RequestOutcome, StepOutcome
from paceline.speculation.traits import DrafterTraits

PassSeconds = Callable[[float, float], float]
"""(rows, mean context) to seconds of a target pass, or to anything proportional to them."""

CPU_BALANCE, GPU_BALANCE = 8.0, 200.0
"""Rows at which a pass spends as long on arithmetic as on reading weights, where nothing was measured."""

_LEVEL, _SHAPE = 0.1, 0.05
"""Weight of the newest pass in how fast the machine is now, and in how passes compare with each other: the speed of a
machine changes within seconds and is the same for all passes, the shape of the curve does not change."""
_REACH = 2.0
"""Powers of two up to which a pass tells of passes over more and fewer rows, the less the further away."""
_NEWEST = 0.2
"""Weight of the newest draft."""
_OUTLIER = 2.0
"""A pass that took more than this many times what was expected counts as this many: another process disturbed it."""
_SETTLING = 3
"""The smallest of this many measurements is the first that counts: weights are read from disk only once."""
_WHOLE_LEVELS = 4
"""Levels of a draft that cannot be shortened, before one was measured: those of the default trees."""
_MANY_ROWS = (64, 512)
"""Passes whose difference tells what a row of a prompt costs."""
_LOOKUP = DrafterTraits()
_KNOTS = tuple(1 << power for power in range(14))


class Prices(Protocol):
    """Seconds; before anything was measured perhaps in another unit, the same for all."""

    def target(self, rows: float, context: float = 0.0) -> float:
        """A target pass over `rows` rows with `context` tokens in the cache before each, on average."""
        ...

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """Level number `level` (from 0) of drafts that `num_requests` requests make together."""
        ...

    def reading(self, num_tokens: int) -> float:
        """What the drafter reads of a request's text before it drafts, `num_tokens` tokens of it."""
        ...

    def observe(self, step: StepOutcome) -> None:
        """Learn from a step."""
        ...


def _a_price(field: str, seconds: float, above_zero: bool = False) -> float:
    """`seconds`, when they are some. NaN, infinity and what is negative would make every comparison of drafts wrong."""
    if 0 <= seconds < inf and (seconds or not above_zero):
        return seconds
    remedy = "give a function whose value is a finite number, " + ("above 0" if above_zero else "0 or more")
    raise InvalidParameter(field, f"a price of {seconds} seconds", remedy)


class FixedPrices:
    """Prices that never change.

    Args:
        target: t(M, context), e.g. a `CostProfile`.
        draft_step: seconds of one draft step by the number of requests that share it and their context.
        reading: seconds in which the drafter reads a number of tokens of a request's text.

    Raises:
        InvalidParameter: when asked, a price that is negative or not finite, or a pass that costs nothing.
    """

    def __init__(
        self,
        target: PassSeconds,
        draft_step: Callable[[int, float], float] = lambda num_requests, context: 0.0,
        reading: Callable[[int], float] = lambda num_tokens: 0.0,
    ) -> None:
        self._target, self._draft_step, self._reading = target, draft_step, reading

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `Prices`."""
        return _a_price("target", self._target(rows, context), above_zero=True)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `Prices`."""
        return _a_price("draft_step", self._draft_step(num_requests, context))

    def reading(self, num_tokens: int) -> float:
        """See `Prices`."""
        return _a_price("reading", self._reading(num_tokens))

    def observe(self, step: StepOutcome) -> None:
        """Nothing to learn."""


class LearnedPrices:
    """A prior for passes, corrected by passes; drafts by their declared cost, corrected by drafts.

    Several ask for the same passes within a step, so what was asked for is kept until something is learned.

    Args:
        passes: what a target pass costs.
        traits: of the drafter, whose `cost_ratio` says what a draft step costs before one was measured.
    """

    def __init__(self, passes: "LearnedPass", traits: DrafterTraits = _LOOKUP) -> None:
        self.passes, self.drafts = passes, LearnedDraft(passes, traits)
        self._besides = MovingAverage(0.0)
        self._asked: dict[tuple[float, float], float] = {}

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `Prices`; what a step does besides passes and drafts counts as part of its pass."""
        seconds = self._asked.get((rows, context))
        if seconds is None:
            seconds = self._asked[rows, context] = self.passes(rows, context) + self._besides.value
        return seconds

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `Prices`."""
        return self.drafts(level, num_requests, context)

    def reading(self, num_tokens: int) -> float:
        """See `Prices`."""
        return self.drafts.reading(num_tokens)

    def observe(self, step: StepOutcome) -> None:
        """Learn from a step that only decoded what its pass cost, and from any step what its drafts cost."""
        self._asked.clear()
        if step.only_decodes and step.is_complete:
            rows = step.num_decodes + step.num_draft_tokens
            self.passes.observe(rows, step.seconds.verifying, step.mean_context)
            self._besides.learn(step.seconds.scheduling + step.seconds.committing)
        asked = [one for one in step.requests if one.asked]
        if asked:
            self.drafts.observe_step(asked, step.seconds.drafting - step.seconds.chosen, step.mean_context)


def roofline(balance: float) -> PassSeconds:
    """The prior without a profile, in one-row passes: reading weights takes 1, arithmetic a share for every row."""
    return lambda rows, _context: hypot(1.0, rows / balance)


class LearnedPass:
    """Seconds of a target pass: a prior, times how fast the machine is, times a learned shape.

    The shape is a factor for each power of two of rows, on straight lines between; a pass moves those within a factor
    of four. So passes over 9 and over 11 rows teach the same line, the price of one more row does not hang on two
    samples, and the curve keeps the prior's form: a corner would draw every draft to itself. Beyond the smallest and
    largest passes seen the nearest factor holds: what one row more than ever costs is the prior's to say.

    Args:
        prior: what a pass is expected to cost; only its shape matters once a pass was seen.
    """

    def __init__(self, prior: PassSeconds) -> None:
        self.prior = prior
        self._level = 0.0
        self._num_passes = 0
        self._shape = [0.0] * len(_KNOTS)
        self._weight = [0.0] * len(_KNOTS)
        self._least, self._most = len(_KNOTS), -1  # knots around the passes seen

    def __call__(self, rows: float, context: float = 0.0) -> float:
        """Seconds; the prior's own number when no pass was seen yet (only ratios matter then)."""
        left, right, share = _place(rows)
        shape = (1 - share) * self._shape[left] + share * self._shape[right]
        return self.prior(rows, context) * exp(self._level + shape)

    def observe(self, rows: int, seconds: float, context: float = 0.0) -> None:
        """A pass over `rows` rows with a mean context of `context` took `seconds` (none on a coarse clock)."""
        if seconds <= 0:
            return
        self._num_passes += 1
        if self._num_passes <= _SETTLING:
            level = log(seconds / self.prior(rows, context))
            self._level = level if self._num_passes == 1 else min(level, self._level)
            return
        surprise = log(seconds / self(rows, context))
        surprise = min(max(surprise, -log(_OUTLIER)), log(_OUTLIER))
        place = min(log2(rows), len(_KNOTS) - 1)
        self._least, self._most = min(self._least, floor(place)), max(self._most, ceil(place))
        for knot in range(max(self._least, ceil(place - _REACH)), min(self._most, floor(place + _REACH)) + 1):
            weight = 1 - abs(knot - place) / _REACH
            self._weight[knot] += weight
            self._shape[knot] += weight * max(_SHAPE, 1 / (1 + self._weight[knot])) * surprise
        self._shape[: self._least] = [self._shape[self._least]] * self._least
        self._shape[self._most + 1 :] = [self._shape[self._most]] * (len(_KNOTS) - 1 - self._most)
        self._level += _LEVEL * surprise


class LearnedDraft:
    """Seconds of drafts.

    A lookup costs the same for every request that asks, however deep its draft; so does the choice of a drafter
    that chooses, whose drafts have been weighed before anybody learns of them. A draft step of a model costs
    `cost_ratio` target passes over as many rows as there are requests, times a factor that is learned. A draft that
    cannot be shortened has one price, all of its levels'.
    """

    def __init__(self, passes: PassSeconds, traits: DrafterTraits) -> None:
        self._passes, self._traits = passes, traits
        self._factor = MovingAverage(float(_WHOLE_LEVELS) if traits.whole else 1.0)
        self._is_priced_by_request = traits.is_lookup or traits.chooses
        self._by_request = MovingAverage(0.0)

    def __call__(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """As `Prices.draft_level`."""
        if level and (self._traits.whole or self._traits.is_lookup):
            return 0.0
        if self._is_priced_by_request:
            return num_requests * self._by_request.value
        return self._factor.value * self._unit(num_requests, context)

    def reading(self, num_tokens: int) -> float:
        """As `Prices.reading`: as many rows of a large pass, at its share of the target's price."""
        if self._traits.chooses or not self._traits.reads:
            return 0.0
        few, many = _MANY_ROWS
        return num_tokens * self._traits.cost_ratio * (self._passes(many, 0.0) - self._passes(few, 0.0)) / (many - few)

    def observe_step(self, asked: list[RequestOutcome], seconds: float, context: float) -> None:
        """The drafts that were asked for in a step took `seconds`, without those that a drafter had weighed itself."""
        if self._is_priced_by_request:
            self._by_request.learn(seconds / len(asked))
            return
        drafted = [one for one in asked if one.num_draft_tokens]
        if drafted and all([one.in_a_row for one in asked]):
            self.observe(max([one.depth for one in drafted]), len(drafted), seconds, context)

    def observe(self, depth: int, num_requests: int, seconds: float, context: float = 0.0) -> None:
        """Drafts of `depth` levels for `num_requests` requests took `seconds`."""
        levels = 1 if self._traits.whole else depth
        if depth and seconds > 0:
            self._factor.learn(seconds / (levels * self._unit(num_requests, context)))

    def _unit(self, num_requests: int, context: float) -> float:
        return self._traits.cost_ratio * self._passes(num_requests, context)


class MovingAverage:
    """A moving average that begins with the smallest of its first measurements, and is `prior` before them."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._seen = 0
        self._average = float("inf")

    @property
    def value(self) -> float:
        """The average; the prior until it has settled."""
        return self._average if self._seen >= _SETTLING else self._prior

    def learn(self, newest: float) -> None:
        """One more measurement."""
        self._seen += 1
        if self._seen <= _SETTLING:
            self._average = min(self._average, newest)
        else:
            self._average += _NEWEST * (min(newest, _OUTLIER * self._average) - self._average)


def _place(rows: float) -> tuple[int, int, float]:
    """The knots around `rows`, and how far it lies between them."""
    right = min(bisect_right(_KNOTS, rows), len(_KNOTS) - 1)
    low, high = _KNOTS[right - 1], _KNOTS[right]
    return right - 1, right, min(1.0, (rows - low) / (high - low))
