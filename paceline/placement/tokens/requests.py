"""`TokenRequests`: who asks for which model when, with how long a prompt, and for how long an answer."""

from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.arrivals import LEAST_CV
from paceline.placement.workload import Workload


@dataclass(frozen=True)
class TokenRequests:
    """Requests in order of arrival.

    Args:
        arrivals: times and models.
        prompt_tokens, output_tokens: float64 [requests], 1 or more.

    Raises:
        InvalidParameter: lengths that do not fit the arrivals, or are below 1.
    """

    arrivals: Workload
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            values = np.asarray(getattr(self, name), np.float64)
            if values.shape != self.arrivals.times.shape:
                problem = f"{values.shape} for {self.arrivals.times.shape} arrivals"
                raise InvalidParameter(name, problem, "give one for each request")
            if len(values) and not (values.min() >= 1 and values.max() < 2**31):
                problem = f"from {values.min():g} to {values.max():g}"
                raise InvalidParameter(name, problem, "give tokens, 1 or more")
            object.__setattr__(self, name, values)

    @property
    def num_requests(self) -> int:
        """Requests in all."""
        return self.arrivals.num_requests

    def between(self, start: float, end: float) -> "TokenRequests":
        """Requests of [start, end), at their own times."""
        first, last = np.searchsorted(self.arrivals.times, [start, end])
        part = slice(first, last)
        return TokenRequests(self.arrivals.between(start, end), self.prompt_tokens[part], self.output_tokens[part])


def drawn_lengths(mean: float, cv: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` lengths with gamma law of that mean and coefficient of variation, rounded, 1 or more."""
    if cv <= LEAST_CV:
        return np.full(count, max(1.0, np.round(mean)))
    return np.maximum(1.0, np.round(rng.gamma(cv**-2, mean * cv**2, count)))
