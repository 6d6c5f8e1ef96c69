"""Intervals for ratios that were measured in pairs: the same prompt by both, interleaved in one run.

Prompts are the clusters: rounds and tokens of one prompt are not independent, so whole prompts are left out in turn,
with all of their rounds. Families of prompts are strata, held fixed. Student's t after a jackknife covers what it
promises with a dozen prompts, where intervals from drawing prompts again are too narrow. Where one or two prompts took
nearly all of the time, as after a stall, no interval is given. numpy only. Not for what to measure (`bench/`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, sqrt

import numpy as np

LEAST_PROMPTS = 6
"""With fewer prompts no interval is given."""
LEAST_FREEDOM = 2.0
"""Degrees of freedom at which Student's t has no variance: up to it an interval says nothing, be it 10 or 10^9 wide."""
CONFIDENCE = 0.95
TOO_FEW, TOO_UNEVEN, NOTHING = "too few prompts", "too uneven", "nothing measured"


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with what is known about it.

    Attributes:
        ratio: the estimate; not a number where nothing was measured.
        low, high: of the 95 % interval; None where `lacking` says why there is none.
        num_prompts: prompts behind it.
        p: two-sided, that the true ratio is 1; None likewise.
    """

    ratio: float
    low: float | None
    high: float | None
    num_prompts: int
    p: float | None = None

    @property
    def lacking(self) -> str | None:
        """Why there is no interval: nothing measured, too few prompts, or too uneven: a few took nearly all time."""
        if self.low is not None:
            return None
        if not self.num_prompts:
            return NOTHING
        return TOO_FEW if self.num_prompts < LEAST_PROMPTS else TOO_UNEVEN

    @property
    def half_width(self) -> float:
        """Half of the interval's width over the ratio; infinite where there is none."""
        return float("inf") if self.low is None or self.high is None else (self.high - self.low) / 2 / self.ratio


@dataclass(frozen=True, eq=False, slots=True)
class Pairs:
    """Seconds and tokens of two ways to answer the same prompts, summed over the rounds of each.

    Attributes:
        base_seconds, base_tokens: [prompts] float64 of what is compared with, e.g. plain decoding.
        seconds, tokens: [prompts] float64.
        strata: [prompts] family of each prompt.
    """

    base_seconds: np.ndarray
    base_tokens: np.ndarray
    seconds: np.ndarray
    tokens: np.ndarray
    strata: Sequence[str]


def time_ratio(pairs: Pairs) -> Interval:
    """Tokens per second over all prompts together, divided by the base's: what the whole bill becomes."""

    def estimate(kept: np.ndarray) -> np.ndarray:
        base = (kept @ pairs.base_seconds) / (kept @ pairs.base_tokens)
        return np.log(base / ((kept @ pairs.seconds) / (kept @ pairs.tokens)))

    return _jackknifed(estimate, [pairs.base_seconds, pairs.seconds], pairs.strata)


def typical_ratio(pairs: Pairs) -> Interval:
    """Geometric mean of the prompts' own ratios: what a user sees whose prompts are like these."""
    logs = np.log((pairs.base_seconds / pairs.base_tokens) / (pairs.seconds / pairs.tokens))
    return _jackknifed(lambda kept: (kept @ logs) / kept.sum(-1), [np.ones(len(logs))], pairs.strata)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are (Holm 1979): reject where one is below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [1.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = largest
    return corrected


_NONE = Interval(float("nan"), None, None, 0)
"""Of no prompts."""


def _jackknifed(
    estimate: Callable[[np.ndarray], np.ndarray], weights: Sequence[np.ndarray], strata: Sequence[str]
) -> Interval:
    """`estimate` of all prompts, with Student's t interval from leaving out one prompt after the other.

    The squared deviations of a stratum of m prompts count m / (m - 1) times (Jones 1974, stratified jackknife). Degrees
    of freedom are those of as many prompts of equal weight as would estimate as well (Kish 1965), on the side of the
    ratio where these are fewer.

    Args:
        estimate: [..., prompts], 1 for each prompt that counts and 0 for others, to [...] logarithms of the ratio.
        weights: for each side of the ratio, [prompts] how much each prompt counts in it.
        strata: [prompts] family of each prompt.
    """
    count = len(strata)
    if not count:
        return _NONE
    log_ratio = float(estimate(np.ones(count)))
    ratio = exp(log_ratio)
    if count < LEAST_PROMPTS:
        return Interval(ratio, None, None, count)
    groups = _strata(strata)
    without = estimate(1 - np.eye(count)) * (count - 1) / count
    spread = sqrt(sum(len(group) * float(without[group].var(ddof=1)) for group in groups))
    effective = min(float(side.sum() ** 2 / (side**2).sum()) for side in weights)
    freedom = effective * (count - len(groups)) / count
    if freedom <= LEAST_FREEDOM:
        return Interval(ratio, None, None, count)
    reach = spread * t_quantile(1 - (1 - CONFIDENCE) / 2, freedom)
    p = t_tail(abs(log_ratio) / spread, freedom) if spread else float(ratio == 1.0)
    return Interval(ratio, exp(log_ratio - reach), exp(log_ratio + reach), count, p)


def _strata(names: Sequence[str]) -> list[np.ndarray]:
    """Indices by family; families with too few prompts for an interval of their own form one stratum."""
    families = {name: np.array([i for i, each in enumerate(names) if each == name]) for name in dict.fromkeys(names)}
    large = [group for group in families.values() if len(group) >= LEAST_PROMPTS]
    small = [group for group in families.values() if len(group) < LEAST_PROMPTS]
    rest = np.concatenate(small) if small else np.array([], int)
    if len(rest) == 1:  # a stratum of one has no spread
        return [np.concatenate([large[0], rest]), *large[1:]] if large else [rest]
    return [*large, rest] if len(rest) else large


def t_quantile(level: float, freedom: float) -> float:
    """The `level` quantile, above 1/2, of Student's t, by bisection on `t_tail`."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 2 * (1 - level) else (low, middle)
    return (low + high) / 2


def t_tail(t: float, freedom: float) -> float:
    """P(|T| > t) of Student's t with `freedom` degrees: an integral over the angle arctan(T / sqrt(freedom))."""
    angles = np.linspace(np.arctan(t / np.sqrt(freedom)), np.pi / 2, 1001)
    scale = np.exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / np.sqrt(np.pi)
    return float(min(1.0, 2 * scale * np.trapezoid(np.cos(angles) ** (freedom - 1), angles)))
