"""`Workload`: who asks for which model when. How arrivals are drawn is `arrivals.py`, traces are `traces.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.model import PlacedModel


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Args:
        times: float64 [requests], seconds, never falling.
        models: int32 [requests], index of the model asked for.

    Raises:
        InvalidParameter: lengths that differ, times out of order or not finite, or a negative model index.
    """

    times: np.ndarray
    models: np.ndarray

    def __post_init__(self) -> None:
        times, models = np.asarray(self.times, np.float64), np.asarray(self.models, np.int32)
        if times.ndim != 1 or times.shape != models.shape:
            raise InvalidParameter("arrivals", f"{times.shape} times, {models.shape} models", "give one model per time")
        if not np.isfinite(times).all():
            raise InvalidParameter("arrivals", "a time is not finite", "give seconds")
        falls = np.flatnonzero(np.diff(times) < 0)
        if len(falls):
            first = falls[0] + 1
            problem = f"request {first} at {times[first]} s comes after one at {times[first - 1]} s"
            raise InvalidParameter("arrivals", problem, "sort them by time")
        if len(models) and models.min() < 0:
            raise InvalidParameter("arrivals", f"model index {models.min()}", "use indices from 0")
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "models", models)

    @property
    def num_requests(self) -> int:
        return len(self.times)

    @property
    def num_models(self) -> int:
        """One more than the largest model index."""
        return int(self.models.max()) + 1 if len(self.models) else 0

    @property
    def duration(self) -> float:
        """Seconds from time 0 to the last arrival."""
        return float(self.times[-1]) if len(self.times) else 0.0

    def times_of(self, model: int) -> np.ndarray:
        return self.times[self.models == model]

    def rates(self, num_models: int) -> np.ndarray:
        """Mean requests per second of each model, float64 [num_models]."""
        return np.bincount(self.models, minlength=num_models) / max(self.duration, 1e-12)

    def between(self, start: float, end: float) -> "Workload":
        """Requests of [start, end), at their own times."""
        first, last = np.searchsorted(self.times, [start, end])
        return Workload(self.times[first:last], self.models[first:last])

    def scale_rate(self, factor: float) -> "Workload":
        """The same arrivals `factor` times as fast: rates grow, burstiness stays."""
        if not factor > 0:
            raise InvalidParameter("rate_scale", f"{factor} is not above 0", "give a factor above 0")
        return Workload(self.times / factor, self.models)


def merge(streams: Sequence[np.ndarray]) -> Workload:
    """One workload of many; stream i, sorted times in seconds, asks for model i. Equal times keep the models' order."""
    models = np.concatenate([np.full(len(times), index, np.int32) for index, times in enumerate(streams)])
    times = np.concatenate([np.asarray(times, np.float64) for times in streams])
    order = np.argsort(times, kind="stable")
    return Workload(times[order], models[order])


def gamma_times(rate: float, cv: float, duration: float, rng: np.random.Generator) -> np.ndarray:
    """Arrival times in [0, duration), float64: gamma gaps of shape 1/cv^2 and scale cv^2/rate, so of mean 1/rate.

    A cv of 1 is Poisson, 0 a clock.
    """
    if not 0 <= rate < float("inf") or not 0 <= cv < float("inf"):
        raise InvalidParameter("rate" if not rate >= 0 else "cv", f"rate {rate}, cv {cv}", "give both 0 or more")
    if rate == 0 or duration <= 0:
        return np.empty(0)
    chunks, end = [], 0.0
    while end < duration:
        count = int(rate * (duration - end) * 1.1) + 64
        gaps = rng.gamma(cv**-2, cv**2 / rate, count) if cv > 0 else np.full(count, 1 / rate)
        chunks.append(end + np.cumsum(gaps))
        end = chunks[-1][-1]
    times = np.concatenate(chunks)
    return times[times < duration]


def draw_for_models(models: Sequence[PlacedModel], duration: float, seed: int = 0) -> Workload:
    """Gamma arrivals at every model's own rate and cv, each from a generator of its own."""
    rngs = np.random.default_rng(seed).spawn(len(models))
    return merge([gamma_times(m.rate, m.cv, duration, rng) for m, rng in zip(models, rngs, strict=True)])


def read_arrivals(path: str | Path) -> Workload:
    """A CSV with a header line and rows of time in seconds and model index."""
    try:
        rows = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, usecols=(0, 1))
    except (OSError, ValueError) as error:
        raise InvalidParameter(
            "arrivals", f"cannot read {path} ({error})", "give a CSV with columns time,model"
        ) from None
    return Workload(rows[:, 0], rows[:, 1].astype(np.int32))
