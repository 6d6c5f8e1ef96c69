"""Requests generated token by token, through groups that run many at once: who is let in, where, and when they end.

The rule is the controller's (`serving/cluster/controller.py` with `token_queue.py`), on the same kernel: a request goes
to the group where it makes fewest late, itself included, and ends first; if that is anybody, it is turned away. How
long its answer will be is what answers of its model had on average so far. Not for choosing placements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.placement.tokens.group import TokenAsk, TokenGroup
from paceline.placement.tokens.lengths import Lengths
from paceline.placement.tokens.profile import TokenProfile
from paceline.placement.tokens.requests import TokenRequests

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class TokenModel:
    """A model as the simulator sees it.

    Attributes:
        slo, slo_first, slo_token: seconds from arrival to the whole answer and to its first token, and per further
            token; infinite for none.
        expected_tokens: of its answers, before any was seen.
    """

    name: str
    slo: float = FOREVER
    slo_first: float = FOREVER
    slo_token: float = FOREVER
    expected_tokens: float = 128.0


@dataclass(frozen=True)
class TokenResult:
    """What became of the requests. Arrays are in their order; NaN and -1 where one was turned away.

    Attributes:
        latency, first: float64, seconds from arrival to the whole answer, and to its first token.
        pace: float64, seconds per further token.
        in_time: bool, it kept all promises.
        routes: int64, the group.
        busy: float64 [groups], seconds in which it did rounds.
        seconds: until the last token.
    """

    latency: np.ndarray
    first: np.ndarray
    pace: np.ndarray
    in_time: np.ndarray
    routes: np.ndarray
    busy: np.ndarray
    seconds: float

    @property
    def slo_attainment(self) -> float:
        """Fraction of all requests that were answered as promised."""
        return float(self.in_time.mean())


def simulate_tokens(
    requests: TokenRequests,
    models: Sequence[TokenModel],
    groups: Sequence[Mapping[str, TokenProfile]],
    overhead: float = 0.0,
    speeds: Sequence[float] | None = None,
) -> TokenResult:
    """Play `requests`, which ask for `models` by index, through `groups`, each with the models that it holds.

    Args:
        overhead: seconds between a request's last token and its answer.
        speeds: seconds of each group over those of its profiles; 1 when left out.
    """
    run = _Run(requests, models, groups, overhead)
    for group, speed in zip(run.groups, speeds or [1.0] * len(groups), strict=True):
        if group is not None:
            group.scale = speed
    return run.result()


def result_of(
    requests: TokenRequests,
    models: Sequence[TokenModel],
    latency: np.ndarray,
    first: np.ndarray,
    routes: np.ndarray,
    busy: np.ndarray,
) -> TokenResult:
    """Who kept all promises; arguments as `TokenResult` has them."""
    arrivals = requests.arrivals
    pace = np.maximum(latency - first, 0.0) / np.maximum(requests.output_tokens - 1, 1)
    promised = np.array([[m.slo, m.slo_first, m.slo_token] for m in models]).T[:, arrivals.models]
    in_time = (latency <= promised[0]) & (first <= promised[1]) & (pace <= promised[2] * (1 + 1e-9))
    last = float(np.nanmax(arrivals.times + latency)) if (routes >= 0).any() else 0.0
    return TokenResult(latency, first, pace, in_time, routes, busy, last)


class _Run:
    def __init__(
        self,
        requests: TokenRequests,
        models: Sequence[TokenModel],
        groups: Sequence[Mapping[str, TokenProfile]],
        overhead: float,
    ) -> None:
        self._requests, self._models, self._overhead = requests, models, overhead
        self.groups = [TokenGroup(held) if held else None for held in groups]
        self._holding = [[g for g, held in enumerate(groups) if model.name in held] for model in models]
        self._lengths = [Lengths(model.expected_tokens) for model in models]
        self._latency, self._first = (np.full(requests.num_requests, np.nan) for _ in range(2))
        self._routes = np.full(requests.num_requests, -1)

    def result(self) -> TokenResult:
        """All requests in order of arrival, then the rest of what they left."""
        arrivals = self._requests.arrivals
        for number, (now, model) in enumerate(zip(arrivals.times.tolist(), arrivals.models.tolist(), strict=True)):
            self._arrive(number, model, now)
        for group in range(len(self.groups)):
            self._advance(group, FOREVER)
        busy = np.array([0.0 if group is None else group.busy for group in self.groups])
        return result_of(self._requests, self._models, self._latency, self._first, self._routes, busy)

    def _arrive(self, number: int, model: int, now: float) -> None:
        holding, spec = self._holding[model], self._models[model]
        for group in holding:
            self._advance(group, now)
        ask = TokenAsk(
            spec.name, self._requests.prompt_tokens[number], self._lengths[model].expected(),
            now + spec.slo - self._overhead, now + spec.slo_first - self._overhead, spec.slo_token,
        )  # fmt: skip
        outlooks = [(self._group(group).consider(ask, now), group) for group in holding]
        if not outlooks:
            return
        best, group = min(outlooks, key=lambda pair: (pair[0].is_late + pair[0].makes_late, pair[0].end, pair[1]))
        if best.is_late or best.makes_late:
            return
        self._group(group).join(number, ask, now, self._requests.output_tokens[number])
        self._routes[number] = group

    def _advance(self, index: int, until: float) -> None:
        group = self.groups[index]
        for number, first, end in group.advance(until) if group else ():
            arrival = self._requests.arrivals.times[number]
            self._first[number] = first + self._overhead - arrival
            self._latency[number] = end + self._overhead - arrival
            self._lengths[int(self._requests.arrivals.models[number])].learn(self._requests.output_tokens[number])

    def _group(self, index: int) -> TokenGroup:
        group = self.groups[index]
        assert group is not None
        return group
