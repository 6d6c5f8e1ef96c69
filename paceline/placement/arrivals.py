"""Random arrivals: Poisson, bursty (gamma-distributed gaps), power-law model popularity, and resampled traces.

Every draw takes a NumPy generator, so a seed makes it reproducible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.model import MAX_CV, PlacedModel
from paceline.placement.workload import MAX_REQUESTS, Workload, merge

LEAST_CV = 1e-6
"""Coefficients of variation below this count as 0: constant gaps."""

FIT_WINDOW = 60.0
"""Seconds in which a trace's rates and burstiness are taken as constant."""

LEAST_GAPS = 2
"""Smallest number of gaps in a window for an estimate of its burstiness; with fewer it counts as Poisson."""


def poisson_times(rate: float, duration: float, rng: np.random.Generator) -> np.ndarray:
    """Arrival times in [0, duration) of a Poisson process, float64, seconds."""
    return gamma_times(rate, 1.0, duration, rng)


def gamma_times(rate: float, cv: float, duration: float, rng: np.random.Generator) -> np.ndarray:
    """Arrival times in [0, duration) with gamma gaps, float64, seconds.

    Gaps have shape 1/cv^2 and scale cv^2/rate: mean 1/rate and coefficient of variation `cv` (1 is Poisson, 0 a clock).
    The process is stationary: time 0 falls anywhere in a gap, not on an arrival. Otherwise a bursty stream would carry
    (cv^2 - 1) / 2 requests more than its rate says, which counts when windows are short.

    Raises:
        InvalidParameter: a negative or infinite rate, cv or duration, or a cv above `MAX_CV`.
    """
    for field, value in (("rate", rate), ("cv", cv), ("duration", duration)):
        if not 0 <= value < float("inf"):
            raise InvalidParameter(field, f"{value} is not 0 or more", "give a finite number, 0 or more")
    if cv > MAX_CV:
        raise InvalidParameter("cv", f"{cv:g} leaves all arrivals at one time", f"give at most {MAX_CV:g}")
    if rate == 0 or duration == 0:
        return np.empty(0)
    if rate * duration > MAX_REQUESTS:
        problem = f"{rate:g} requests per second for {duration:g} s are {rate * duration:.3g} requests"
        raise InvalidParameter("rate", problem, f"draw up to {MAX_REQUESTS:g}")
    cv = cv if cv > LEAST_CV else 0.0
    chunks, end = [_first_arrival(rate, cv, rng)], 0.0
    while (end := chunks[-1][-1]) < duration:
        count = int(1.1 * rate * (duration - end)) + 64
        gaps = rng.gamma(cv**-2, cv**2 / rate, count) if cv > 0 else np.full(count, 1 / rate)
        chunks.append(end + np.cumsum(gaps))
    times = np.concatenate(chunks)
    return times[times < duration]


def _first_arrival(rate: float, cv: float, rng: np.random.Generator) -> np.ndarray:
    """Time to the first arrival of the stationary process: a uniform fraction of a length-biased gap."""
    gap = rng.gamma(cv**-2 + 1, cv**2 / rate) if cv > 0 else 1 / rate
    return np.array([gap * rng.random()])


def draw_for_models(models: Sequence[PlacedModel], duration: float, seed: int = 0) -> Workload:
    """Gamma arrivals over [0, duration) at every model's rate and cv, with a separate generator per model."""
    total = sum(model.rate for model in models) * duration
    if total > MAX_REQUESTS:
        raise InvalidParameter("rate", f"all models together get {total:.3g} requests", f"draw up to {MAX_REQUESTS:g}")
    rngs = np.random.default_rng(seed).spawn(len(models))
    return merge([gamma_times(m.rate, m.cv, duration, rng) for m, rng in zip(models, rngs, strict=True)])


def power_law_shares(num_models: int, exponent: float = 0.5) -> np.ndarray:
    """Shares of the traffic, float64 [num_models], summing to 1: model i gets (i + 1)^-exponent of it."""
    if num_models < 1:
        raise InvalidParameter("num_models", f"{num_models} is less than 1", "name at least one model")
    weights = np.arange(1, num_models + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def assign_models(times: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> Workload:
    """Give each recorded arrival a model drawn by `shares` (float64 [models], summing to 1)."""
    return Workload(times, rng.choice(len(shares), len(times), p=shares).astype(np.int32))


@dataclass(frozen=True)
class FittedWorkload:
    """A trace summarised by each model's rate and burstiness (coefficient of variation) in each window.

    Attributes:
        window: seconds.
        rates: float64 [windows, models], requests per second.
        cvs: float64 [windows, models].
    """

    window: float
    rates: np.ndarray
    cvs: np.ndarray

    def resample(self, rng: np.random.Generator, rate_scale: float = 1.0, cv_scale: float = 1.0) -> Workload:
        """New arrivals with the same rates and burstiness, or with scaled ones (Li et al. 2023, section 6.2)."""
        streams = []
        for model in range(self.rates.shape[1]):
            times = [
                index * self.window + gamma_times(rate_scale * rate, cv_scale * cv, self.window, rng)
                for index, (rate, cv) in enumerate(zip(self.rates[:, model], self.cvs[:, model], strict=True))
            ]
            streams.append(np.concatenate([np.empty(0), *times]))
        return merge(streams)


def fit(workload: Workload, window: float, num_models: int | None = None) -> FittedWorkload:
    """Rate and cv of each model in each `window` of seconds; the last window may be partly empty and counts as full."""
    if not 0 < window < float("inf"):
        raise InvalidParameter("window", f"{window} is not above 0", "give seconds, e.g. 60")
    num_models = workload.num_models if num_models is None else num_models
    num_windows = int(workload.duration // window) + 1 if workload.num_requests else 0
    if num_windows * num_models > MAX_REQUESTS:
        problem = f"{num_windows} windows of {window:g} s for {num_models} models"
        raise InvalidParameter("window", problem, "take longer ones")
    rates, cvs = np.zeros((num_windows, num_models)), np.ones((num_windows, num_models))
    edges = np.arange(1, num_windows) * window
    for model in range(num_models):
        times = workload.times_of(model)
        for index, inside in enumerate(np.split(times, np.searchsorted(times, edges))):
            gaps = np.diff(inside)
            rates[index, model] = len(inside) / window
            if len(gaps) >= LEAST_GAPS and gaps.mean() > 0:
                cvs[index, model] = gaps.std() / gaps.mean()
    return FittedWorkload(window, rates, cvs)


def burstier(workload: Workload, cv_scale: float, num_models: int, seed: int = 0) -> Workload:
    """New arrivals like those of `workload`, window by window, with `cv_scale` times their burstiness.

    Where tokens of prompts and answers are known, each new request has those of a recorded one for the same model.
    """
    rng = np.random.default_rng(seed)
    drawn = fit(workload, FIT_WINDOW, num_models).resample(rng, cv_scale=cv_scale)
    if workload.prompt_tokens is None or workload.output_tokens is None:
        return drawn
    like = np.empty(drawn.num_requests, np.int64)
    for model in range(num_models):
        asked = drawn.models == model
        if asked.any():
            like[asked] = rng.choice(np.flatnonzero(workload.models == model), int(asked.sum()))
    return replace(drawn, prompt_tokens=workload.prompt_tokens[like], output_tokens=workload.output_tokens[like])
