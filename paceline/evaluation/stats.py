"""Intervals for ratios that were measured in pairs: the same prompt by both, interleaved in one run.

Prompts are the clusters: rounds and tokens of one prompt are not independent, so whole prompts are drawn again,
with all of their rounds. Families of prompts are strata, held fixed. numpy only. Not for what to measure (`bench/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma
from statistics import NormalDist

import numpy as np

LEAST_PROMPTS = 6
"""With fewer prompts no interval is given."""
DRAWS = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with what is known about it.

    Attributes:
        ratio: the estimate.
        low, high: of the 95 % interval; None with too few prompts.
        num_prompts: prompts behind it.
        p: two-sided, that the true ratio is 1; None with too few prompts.
    """

    ratio: float
    low: float | None
    high: float | None
    num_prompts: int
    p: float | None = None

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


def time_ratio(pairs: Pairs, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Tokens per second over all prompts together, divided by the base's: what the whole bill becomes."""

    def estimate(chosen: np.ndarray) -> np.ndarray:
        base = pairs.base_seconds[chosen].sum(-1) / pairs.base_tokens[chosen].sum(-1)
        return base / (pairs.seconds[chosen].sum(-1) / pairs.tokens[chosen].sum(-1))

    return _bootstrapped(estimate, pairs.strata, draws, seed)


def typical_ratio(pairs: Pairs, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Geometric mean of the prompts' own ratios: what a user sees whose prompts are like these."""
    logs = np.log((pairs.base_seconds / pairs.base_tokens) / (pairs.seconds / pairs.tokens))
    return _bootstrapped(lambda chosen: np.exp(logs[chosen].mean(-1)), pairs.strata, draws, seed)


def mean_interval(values: np.ndarray, strata: Sequence[str], draws: int = DRAWS, seed: int = 0) -> Interval:
    """The mean of one positive number per prompt, and its interval."""
    return _bootstrapped(lambda chosen: values[chosen].mean(-1), strata, draws, seed)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for how many there are (Holm 1979): reject where one is below the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [1.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[i]))
        corrected[i] = largest
    return corrected


def _bootstrapped(estimate, strata: Sequence[str], draws: int, seed: int) -> Interval:
    """`estimate` of all prompts, with the interval that drawing prompts again within their strata gives.

    Args:
        estimate: [..., prompts] indices to [...] estimates, all positive.
    """
    count = len(strata)
    ratio = float(estimate(np.arange(count)))
    if count < LEAST_PROMPTS:
        return Interval(ratio, None, None, count)
    groups = _strata(strata)
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([group[rng.integers(0, len(group), (draws, len(group)))] for group in groups], axis=1)
    drawn = np.sort(estimate(chosen))
    freedom = count - len(groups)
    tail = _tail(count, freedom)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    spread = float(np.log(drawn).std()) * np.sqrt(count / freedom)
    p = t_tail(abs(np.log(ratio)) / spread, freedom) if spread else float(ratio == 1.0)
    return Interval(ratio, float(low), float(high), count, p)


def _strata(names: Sequence[str]) -> list[np.ndarray]:
    """Indices by family; families with too few prompts for an interval of their own form one stratum."""
    families = {name: np.array([i for i, each in enumerate(names) if each == name]) for name in dict.fromkeys(names)}
    large = [group for group in families.values() if len(group) >= LEAST_PROMPTS]
    small = [group for group in families.values() if len(group) < LEAST_PROMPTS]
    rest = np.concatenate(small) if small else np.array([], int)
    if len(rest) == 1:  # a stratum of one has no spread
        return [np.concatenate([large[0], rest]), *large[1:]] if large else [rest]
    return [*large, rest] if len(rest) else large


def _tail(count: int, freedom: int) -> float:
    """The share of draws cut off at each end.

    A percentile interval is too narrow by t against normal quantiles, and by the square root of prompts less strata
    over prompts; its percentiles are moved out by as much (Hesterberg 2015, section 6.2: expanded percentiles).
    """
    wide = t_quantile(1 - (1 - CONFIDENCE) / 2, freedom) * np.sqrt(count / freedom)
    return NormalDist().cdf(-wide)


def t_quantile(level: float, freedom: int) -> float:
    """The `level` quantile, above 1/2, of Student's t, by bisection on `t_tail`."""
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 2 * (1 - level) else (low, middle)
    return (low + high) / 2


def t_tail(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's t with `freedom` degrees: an integral over the angle arctan(T / sqrt(freedom))."""
    angles = np.linspace(np.arctan(t / np.sqrt(freedom)), np.pi / 2, 1001)
    scale = np.exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / np.sqrt(np.pi)
    return float(min(1.0, 2 * scale * np.trapezoid(np.cos(angles) ** (freedom - 1), angles)))
