"""Confidence intervals of ratios measured in pairs: both sides answer the same prompts, interleaved in one run.

Prompts are clusters: rounds and tokens of one prompt are not independent, so the jackknife leaves out whole prompts
with all of their rounds. Families of prompts are fixed strata. The jackknife with Student's t has its nominal coverage
with a dozen prompts, where bootstrap intervals are too narrow. No interval is given where one or two prompts took
nearly all of the time, as after a stall. numpy only. Not for what to measure (`bench/`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, sqrt

import numpy as np

LEAST_PROMPTS = 6
"""With fewer prompts no interval is given."""
LEAST_FREEDOM = 2.0
"""No interval is given up to these degrees of freedom, where Student's t has no finite variance."""
CONFIDENCE = 0.95
TOO_FEW, TOO_UNEVEN, NOTHING = "too few prompts", "too uneven", "nothing measured"


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimated ratio with its confidence interval.

    Attributes:
        ratio: the estimate; NaN if nothing was measured.
        low, high: ends of the 95 % interval; None if there is none, see `lacking`.
        num_prompts: number of prompts measured.
        p: two-sided p-value of the hypothesis that the ratio is 1; None without an interval.
    """

    ratio: float
    low: float | None
    high: float | None
    num_prompts: int
    p: float | None = None

    @property
    def lacking(self) -> str | None:
        """Why there is no interval: `NOTHING`, `TOO_FEW`, or `TOO_UNEVEN`: few prompts took most of the time."""
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
        base_seconds, base_tokens: [prompts] float64 of the baseline, e.g. plain decoding.
        seconds, tokens: [prompts] float64 of the other.
        strata: [prompts] family of each prompt.
    """

    base_seconds: np.ndarray
    base_tokens: np.ndarray
    seconds: np.ndarray
    tokens: np.ndarray
    strata: Sequence[str]


def time_ratio(pairs: Pairs) -> Interval:
    """Ratio of the total tokens per second, over all prompts, to the baseline's: the speed-up of the whole workload."""

    def estimate(kept: np.ndarray) -> np.ndarray:
        base = (kept @ pairs.base_seconds) / (kept @ pairs.base_tokens)
        return np.log(base / ((kept @ pairs.seconds) / (kept @ pairs.tokens)))

    return _jackknifed(estimate, [pairs.base_seconds, pairs.seconds], pairs.strata)


def typical_ratio(pairs: Pairs) -> Interval:
    """Geometric mean of the prompts' ratios: the speed-up of a typical prompt."""
    logs = np.log((pairs.base_seconds / pairs.base_tokens) / (pairs.seconds / pairs.tokens))
    return _jackknifed(lambda kept: (kept @ logs) / kept.sum(-1), [np.ones(len(logs))], pairs.strata)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple testing (Holm 1979): reject those below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [1.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = largest
    return corrected


_NONE = Interval(float("nan"), None, None, 0)
"""The interval of no prompts."""


def _jackknifed(
    estimate: Callable[[np.ndarray], np.ndarray], weights: Sequence[np.ndarray], strata: Sequence[str]
) -> Interval:
    """`estimate` over all prompts, with a Student's t interval from the stratified jackknife over prompts.

    The squared deviations of a stratum of m prompts are weighted by m / (m - 1) (Jones 1974). The degrees of freedom
    follow from the effective number of prompts (Kish 1965), the smaller one of both sides of the ratio.

    Args:
        estimate: maps [..., prompts], 1 for each included prompt and 0 for others, to [...] logarithms of the ratio.
        weights: [prompts] weight of each prompt, for each side of the ratio.
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
    """Indices of the prompts in each stratum: one per family, with families under `LEAST_PROMPTS` merged into one."""
    families = {name: np.array([i for i, each in enumerate(names) if each == name]) for name in dict.fromkeys(names)}
    large = [group for group in families.values() if len(group) >= LEAST_PROMPTS]
    small = [group for group in families.values() if len(group) < LEAST_PROMPTS]
    rest = np.concatenate(small) if small else np.array([], int)
    if len(rest) == 1:  # a stratum of one has no spread
        return [np.concatenate([large[0], rest]), *large[1:]] if large else [rest]
    return [*large, rest] if len(rest) else large


def t_quantile(level: float, freedom: float) -> float:
    """The quantile of Student's t at `level`, above 1/2, by bisection on `t_tail`; at most 1000."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 2 * (1 - level) else (low, middle)
    return (low + high) / 2


def t_tail(t: float, freedom: float) -> float:
    """P(|T| > t) of Student's t with `freedom` degrees, integrated over the angle arctan(T / sqrt(freedom))."""
    angles = np.linspace(np.arctan(t / np.sqrt(freedom)), np.pi / 2, 1001)
    scale = np.exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / np.sqrt(np.pi)
    return float(min(1.0, 2 * scale * np.trapezoid(np.cos(angles) ** (freedom - 1), angles)))
