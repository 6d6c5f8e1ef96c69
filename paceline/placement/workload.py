"""`Workload`: arrival times and models of requests. Drawing arrivals is `arrivals.py`, reading them `traces.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import InvalidParameter

MAX_SECONDS = 1e9
"""Thirty years: larger times count from an epoch, or are in milliseconds."""

MAX_REQUESTS = 200_000_000
"""Largest number of requests of a stream: 2.4 GB with their models."""

PART = 4_000_000
"""Requests processed at once, so that temporary arrays stay small."""


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Args:
        times: float64 [requests], seconds, not decreasing.
        models: int32 [requests], index of the requested model.
        prompt_tokens, output_tokens: float64 [requests], if requests are generated token by token; None if unknown.

    Raises:
        InvalidParameter: lengths that differ, times out of order, negative, not finite or above `MAX_SECONDS`, or a
            model index that is no index.
    """

    times: np.ndarray
    models: np.ndarray
    prompt_tokens: np.ndarray | None = None
    output_tokens: np.ndarray | None = None

    def __post_init__(self) -> None:
        times, models = np.asarray(self.times, np.float64), _indices(self.models)
        if times.ndim != 1 or times.shape != models.shape:
            raise InvalidParameter("arrivals", f"{times.shape} times, {models.shape} models", "give one model per time")
        for part in parts(len(times)):
            _check_order(times, part)
        if len(times) and not 0 <= times[0] <= times[-1] <= MAX_SECONDS:
            problem = f"times from {times[0]:g} to {times[-1]:g} s"
            raise InvalidParameter("arrivals", problem, f"count seconds from 0, up to {MAX_SECONDS:g}")
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "models", models)
        for name in ("prompt_tokens", "output_tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _lengths(name, getattr(self, name), len(times)))

    @property
    def num_requests(self) -> int:
        """Number of requests."""
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
        """float64 [requests for `model`], seconds."""
        return self.times[self.models == model]

    def rates(self, num_models: int) -> np.ndarray:
        """Mean requests per second of each model, float64 [num_models]."""
        return self.counts(num_models) / max(self.duration, 1e-12)

    def counts(self, num_models: int) -> np.ndarray:
        """Requests for each model, int64 [num_models]."""
        found = np.zeros(max(num_models, self.num_models), np.int64)
        for part in parts(self.num_requests):
            found += np.bincount(self.models[part], minlength=len(found))
        return found

    def between(self, start: float, end: float) -> "Workload":
        """Requests of [start, end), at their own times."""
        part = slice(*np.searchsorted(self.times, [start, end]))
        lengths = [None if each is None else each[part] for each in (self.prompt_tokens, self.output_tokens)]
        return Workload(self.times[part], self.models[part], *lengths)

    def scale_rate(self, factor: float) -> "Workload":
        """The same arrivals with times divided by `factor`: rates scale, burstiness stays."""
        if not 0 < factor < float("inf"):
            raise InvalidParameter("rate_scale", f"{factor} is not above 0", "give a factor above 0")
        return replace(self, times=self.times / factor)


def parts(count: int, size: int = PART) -> Iterator[slice]:
    """Slices of at most `size` that cover `count` rows, in order."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _check_order(times: np.ndarray, part: slice) -> None:
    """Raise InvalidParameter for times in `part` that are not finite, or before their predecessor."""
    if not np.isfinite(times[part]).all():
        raise InvalidParameter("arrivals", "a time is not finite", "give seconds")
    start = max(part.start - 1, 0)
    falls = np.flatnonzero(np.diff(times[start : part.stop]) < 0)
    if len(falls):
        first = start + int(falls[0]) + 1
        problem = f"request {first} at {times[first]} s comes after one at {times[first - 1]} s"
        raise InvalidParameter("arrivals", problem, "sort them by time")


def _lengths(name: str, values: np.ndarray, count: int) -> np.ndarray:
    """Numbers of tokens as float64 [count]. Raises InvalidParameter for invalid ones."""
    found = np.asarray(values, np.float64)
    if found.shape != (count,) or (count and not 1 <= found.min() <= found.max() < 2**31):
        problem = f"{found.shape} for {count} requests, from {found.min(initial=1):g}"
        raise InvalidParameter(name, problem, "give tokens, 1 or more, for each request")
    return found


def _indices(models: Sequence[int] | np.ndarray) -> np.ndarray:
    """Model indices as int32. Raises InvalidParameter for invalid ones."""
    found = np.asarray(models)
    if found.dtype != np.int32 or (found.size and found.min() < 0):
        wrong = [m for m in found.ravel().tolist() if not (0 <= m < 2**31 and m == int(m))]
        if wrong:
            raise InvalidParameter("arrivals", f"model index {wrong[0]}", "use indices from 0")
    return found.astype(np.int32, copy=False)


def merge(streams: Sequence[np.ndarray]) -> Workload:
    """One workload of several streams; stream i has sorted times, in seconds, for model i. Ties are ordered by model.

    Merged by intervals of time, so that temporary memory is only that of about `PART` requests.
    """
    total = sum(len(times) for times in streams)
    first = min((times[0] for times in streams if len(times)), default=0.0)
    last = max((times[-1] for times in streams if len(times)), default=0.0)
    edges = np.append(np.linspace(first, last, max(1, total // PART) + 1)[1:-1], np.inf)
    times, models = np.empty(total), np.empty(total, np.int32)
    begins, filled = [0] * len(streams), 0
    for edge in edges:
        ends = [int(np.searchsorted(stream, edge)) for stream in streams]
        bounds = list(zip(streams, begins, ends, strict=True))
        some = np.concatenate([np.empty(0), *(stream[begin:end] for stream, begin, end in bounds)])
        order = np.argsort(some, kind="stable")
        part = slice(filled, filled + len(some))
        times[part] = some[order]
        asked = np.repeat(np.arange(len(streams), dtype=np.int32), [end - begin for _, begin, end in bounds])
        models[part] = asked[order]
        begins, filled = ends, part.stop
    return Workload(times, models)
