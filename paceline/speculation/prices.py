"""`Prices`: cost of target passes and drafts in seconds, the basis of every decision about drafts.

`LearnedPrices` start from a prior (a profile or a roofline) and are corrected by the time of every step. `FixedPrices`
never change: for simulators, replays and tests. Not for reports: `benchmarks/cost_curve.py` measures with care.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from math import ceil, exp, floor, hypot, inf, log, log2
from typing import Protocol

from paceline.errors import InvalidParameter
from paceline.speculation.cost import CostProfile
from paceline.speculation.outcome import RequestOutcome, StepOutcome
from paceline.speculation.traits import DrafterTraits

PassSeconds = Callable[[float, float], float]
"""(rows, mean context) to the seconds of a target pass, or to a number proportional to them."""

CPU_BALANCE, GPU_BALANCE = 8.0, 200.0
"""Roofline prior: number of rows at which arithmetic takes as long as reading the weights."""

_LEVEL, _SHAPE = 0.1, 0.05
"""Weight of the newest pass in the level (the machine's current speed, common to all passes, which changes within
seconds) and in the shape of the curve (which stays)."""
_REACH = 2.0
"""Distance, in powers of two of rows, over which a pass corrects the shape; its weight falls linearly to 0 there."""
_NEWEST = 0.2
"""Weight of the newest measurement in a `MovingAverage`."""
_OUTLIER = 2.0
"""Measurements are clipped to this many times the expected value: longer ones were disturbed by another process."""
_LARGEST_SURPRISE = log(_OUTLIER)
_SETTLING = 3
"""An average starts as the minimum of this many measurements, because the first include reading weights from disk."""
_WHOLE_LEVELS = 4
"""Prior number of levels of a draft that cannot be shortened: that of the default trees."""
_MANY_ROWS = (64, 512)
"""Two numbers of rows; the difference of their passes gives the cost of a prefill row."""
_LOOKUP = DrafterTraits()
_UNTIL_AHEAD = 16
"""Steps without drafts after which a device that hides the host begins their passes ahead."""
_AHEAD = 0.03
"""As `_LEVEL` and `_SHAPE`, for passes begun ahead: those steps are short and all alike, and their price decides
whether to draft at all."""
_KNOTS = tuple(1 << power for power in range(14))


class Prices(Protocol):
    """Costs in seconds. Before the first measurement they may be in another unit, the same for all."""

    def target(self, rows: float, context: float = 0.0) -> float:
        """Cost of a target pass over `rows` rows with a mean of `context` tokens in the cache before each."""
        ...

    def prompt_row(self) -> float:
        """Cost of a row of a prompt in a step that it fills."""
        ...

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """Cost of level number `level` (from 0) of drafts that `num_requests` requests make together."""
        ...

    def reading(self, num_tokens: int) -> float:
        """Cost of the drafter's prefill of `num_tokens` tokens of a request's text."""
        ...

    def observe(self, step: StepOutcome) -> None:
        """Learn from a step."""
        ...


def _a_price(field: str, seconds: float, above_zero: bool = False) -> float:
    """Return `seconds`. Raises InvalidParameter unless finite and at least 0 (above 0 if `above_zero`)."""
    if 0 <= seconds < inf and (seconds or not above_zero):
        return seconds
    remedy = "give a function whose value is a finite number, " + ("above 0" if above_zero else "0 or more")
    raise InvalidParameter(field, f"a price of {seconds} seconds", remedy)


def _row_of_many(passes: PassSeconds) -> float:
    """What a row adds to a pass of many; at least 0."""
    few, many = _MANY_ROWS
    return max(0.0, passes(many, 0.0) - passes(few, 0.0)) / (many - few)


class FixedPrices:
    """Prices that never change.

    Args:
        target: t(M, context), e.g. a `CostProfile`.
        draft_step: seconds of one draft step by the number of requests that share it and their context.
        reading: seconds of the drafter's prefill by number of tokens.

    Raises:
        InvalidParameter: from the methods: a price that is negative or not finite, or a pass of 0 seconds.
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

    def prompt_row(self) -> float:
        """See `Prices`: of a large pass, by `target`."""
        return _row_of_many(self.target)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `Prices`."""
        return _a_price("draft_step", self._draft_step(num_requests, context))

    def reading(self, num_tokens: int) -> float:
        """See `Prices`."""
        return _a_price("reading", self._reading(num_tokens))

    def observe(self, step: StepOutcome) -> None:
        """Do nothing."""


class LearnedPrices:
    """Prices that start from a prior and are corrected by the measured time of every step.

    Prices of passes are cached until the next `observe`, because several policies read the same ones in a step.

    Args:
        passes: cost of a target pass.
        traits: of the drafter; `cost_ratio` is the prior cost of a draft step.
        hides_host: whether a device begins passes without drafts ahead, so that the host does its other work of such a
            step meanwhile. Their cost is then learned by itself (`undrafted`), because steps with drafts do not show
            it, and is nothing that a single step could choose (`policies/where_faster.py`).
    """

    def __init__(self, passes: "LearnedPass", traits: DrafterTraits = _LOOKUP, *, hides_host: bool = False) -> None:
        self.passes, self.drafts = passes, LearnedDraft(passes, traits)
        self._ahead = LearnedPass(passes.prior, _AHEAD, _AHEAD) if hides_host else None
        self._in_a_row, self._has_drafted = 0, False
        self._besides = MovingAverage(0.0)
        self._prompt_row = MovingAverage(1.0)
        self._asked: dict[tuple[float, float], float] = {}

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `Prices`; includes the other work of a step (scheduling and commit)."""
        seconds = self._asked.get((rows, context))
        if seconds is None:
            seconds = self._asked[rows, context] = self.passes(rows, context) + self._besides.value
        return seconds

    def prompt_row(self) -> float:
        """See `Prices`: that of a large pass of decodes, times a learned factor."""
        return _row_of_many(self.passes) * self._prompt_row.value

    def undrafted(self, rows: float, context: float = 0.0) -> float:
        """Cost of one of many steps in a row of as many requests, without drafts and prefill rows."""
        if self._ahead is None:
            return self.target(rows, context)
        is_known = self._ahead.num_passes or isinstance(self._ahead.prior, CostProfile)
        return self._ahead(rows, context) if is_known else self.passes(rows, context)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `Prices`."""
        return self.drafts(level, num_requests, context)

    def reading(self, num_tokens: int) -> float:
        """See `Prices`."""
        return self.drafts.reading(num_tokens)

    def observe(self, step: StepOutcome) -> None:
        """Learn the cost of passes from complete steps, and that of drafts from every step.

        Steps with prefill rows teach nothing but what a row of a prompt takes, where one filled the step.
        """
        self._asked.clear()
        if step.prompt_rows and step.is_complete and self.passes.num_passes:
            others = self.passes(step.num_decodes + step.num_draft_tokens, step.mean_context)
            row, usual = (step.seconds.verifying - others) / step.prompt_rows, _row_of_many(self.passes)
            self._prompt_row.learn(max(0.0, row) / usual if usual > 0 else 1.0)
        if step.only_decodes and step.is_complete:
            rows = step.num_decodes + step.num_draft_tokens
            seconds, besides = step.seconds.verifying, step.seconds.scheduling + step.seconds.committing
            self._in_a_row = 0 if step.num_draft_tokens else self._in_a_row + 1
            if self._ahead is not None and self._in_a_row:
                self._learn_ahead(self._ahead, rows, seconds + besides, step.mean_context)
            else:
                self._has_drafted = True
                self.passes.observe(rows, seconds, step.mean_context)
                self._besides.learn(besides)
        asked = [one for one in step.requests if one.asked]
        if asked:
            self.drafts.observe_step(asked, step.seconds.drafting - step.seconds.chosen, step.mean_context)

    def _learn_ahead(self, ahead: "LearnedPass", rows: int, seconds: float, context: float) -> None:
        """Learn from a step without drafts. How long its pass took is hidden by the host: it teaches `passes` no more
        than their unit, before any step with drafts."""
        if self._in_a_row > _UNTIL_AHEAD:
            ahead.observe(rows, seconds, context)
        if not self._has_drafted:
            self.passes.observe(rows, seconds, context)


def roofline(balance: float) -> PassSeconds:
    """Prior without a profile, relative to a one-row pass: sqrt(1 + (rows / balance)^2), a smooth roofline."""
    return lambda rows, _context: hypot(1.0, rows / balance)


class LearnedPass:
    """Seconds of a target pass: prior(rows, context) * exp(level + shape(rows)).

    The level is the machine's current speed. The shape is a piecewise linear correction with a knot at each power of
    two of rows; a pass corrects the knots within a factor of four of its rows. Thus the cost of one more row never
    rests on two single samples, and the curve keeps the prior's smooth form, without corners that would attract all
    draft lengths. Beyond the smallest and largest passes seen, the correction is constant.

    Args:
        prior: expected cost of a pass; only its shape matters once a pass was seen.
        newest, newest_shape: weight of the newest pass in the level and in the shape.

    Attributes:
        num_passes: passes seen.
    """

    def __init__(self, prior: PassSeconds, newest: float = _LEVEL, newest_shape: float = _SHAPE) -> None:
        self.prior = prior
        self._newest, self._newest_shape = newest, newest_shape
        self._level = 0.0
        self.num_passes = 0
        self._shape = [0.0] * len(_KNOTS)
        self._weight = [0.0] * len(_KNOTS)
        self._least, self._most = len(_KNOTS), -1  # knots around the passes seen

    def __call__(self, rows: float, context: float = 0.0) -> float:
        """Seconds of a pass; before the first measurement the prior's value, in the prior's unit."""
        left, right, share = _place(rows)
        shape = (1 - share) * self._shape[left] + share * self._shape[right]
        return self.prior(rows, context) * exp(self._level + shape)

    def observe(self, rows: int, seconds: float, context: float = 0.0) -> None:
        """Learn from a pass over `rows` rows with mean context `context` that took `seconds`; 0 or less is ignored."""
        if seconds <= 0:
            return
        self.num_passes += 1
        if self.num_passes <= _SETTLING:
            level = log(seconds / self.prior(rows, context))
            self._level = level if self.num_passes == 1 else min(level, self._level)
            return
        surprise = min(max(log(seconds / self(rows, context)), -_LARGEST_SURPRISE), _LARGEST_SURPRISE)
        place = min(log2(rows), len(_KNOTS) - 1)
        self._least, self._most = min(self._least, floor(place)), max(self._most, ceil(place))
        shape, weights, least, most = self._shape, self._weight, self._least, self._most
        for knot in range(max(least, ceil(place - _REACH)), min(most, floor(place + _REACH)) + 1):
            weight = 1 - abs(knot - place) / _REACH
            weights[knot] += weight
            shape[knot] += weight * max(self._newest_shape, 1 / (1 + weights[knot])) * surprise
        shape[:least] = [shape[least]] * least
        shape[most + 1 :] = [shape[most]] * (len(_KNOTS) - 1 - most)
        self._level += self._newest * surprise


class LearnedDraft:
    """Seconds of drafts.

    A lookup has one learned cost per request, whatever its depth. So has a drafter that chooses between methods, which
    weighs the cost of its drafts itself. A draft step of a model costs `cost_ratio` target passes over one row per
    request, times a learned factor. A draft that cannot be shortened has one price for all its levels.
    """

    def __init__(self, passes: PassSeconds, traits: DrafterTraits) -> None:
        self._passes, self._traits = passes, traits
        self._factor = MovingAverage(float(_WHOLE_LEVELS) if traits.whole else 1.0)
        self._is_priced_by_request = traits.is_lookup or traits.chooses
        self._by_request = MovingAverage(0.0)

    def __call__(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `Prices.draft_level`."""
        if level and (self._traits.whole or self._traits.is_lookup):
            return 0.0
        if self._is_priced_by_request:
            return num_requests * self._by_request.value
        return self._factor.value * self._unit(num_requests, context)

    def reading(self, num_tokens: int) -> float:
        """See `Prices.reading`: the cost of as many rows of a large target pass, times `cost_ratio`."""
        if self._traits.chooses or not self._traits.reads:
            return 0.0
        return num_tokens * self._traits.cost_ratio * _row_of_many(self._passes)

    def observe_step(self, asked: list[RequestOutcome], seconds: float, context: float) -> None:
        """Learn from a step: its requested drafts took `seconds`, excluding those of `StepSeconds.chosen`."""
        if self._is_priced_by_request:
            self._by_request.learn(seconds / len(asked))
            return
        drafted = [one for one in asked if one.num_draft_tokens]
        if drafted and all([one.in_a_row for one in asked]):
            self.observe(max([one.depth for one in drafted]), len(drafted), seconds, context)

    def observe(self, depth: int, num_requests: int, seconds: float, context: float = 0.0) -> None:
        """Learn that drafts of `depth` levels for `num_requests` requests took `seconds`."""
        levels = 1 if self._traits.whole else depth
        if depth and seconds > 0:
            self._factor.learn(seconds / (levels * self._unit(num_requests, context)))

    def _unit(self, num_requests: int, context: float) -> float:
        return self._traits.cost_ratio * self._passes(num_requests, context)


class MovingAverage:
    """A moving average that starts as the minimum of its first `_SETTLING` measurements, and is `prior` before that."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._seen = 0
        self._average = float("inf")

    @property
    def value(self) -> float:
        """The average; the prior before `_SETTLING` measurements."""
        return self._average if self._seen >= _SETTLING else self._prior

    def learn(self, newest: float) -> None:
        """Add a measurement."""
        self._seen += 1
        if self._seen <= _SETTLING:
            self._average = min(self._average, newest)
        else:
            self._average += _NEWEST * (min(newest, _OUTLIER * self._average) - self._average)


@lru_cache(maxsize=1 << 10)
def _place(rows: float) -> tuple[int, int, float]:
    """Indices of the knots on both sides of `rows`, and its relative position between them, in [0, 1]."""
    right = min(bisect_right(_KNOTS, rows), len(_KNOTS) - 1)
    low, high = _KNOTS[right - 1], _KNOTS[right]
    return right - 1, right, min(1.0, (rows - low) / (high - low))
