"""Pools: groups that only read prompts, and groups that only generate what follows (Zhong et al. 2024, DistServe;
Patel et al. 2024, Splitwise).

Prompts then hold up nobody's tokens, at the price of moving keys and values from one pool to the other, and of devices
that cannot stand in for those of the other pool. For planning: Paceline's own engines do not move keys and values.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.placement.tokens.group import Outlook, TokenAsk, TokenGroup
from paceline.placement.tokens.lengths import Lengths
from paceline.placement.tokens.profile import TokenProfile
from paceline.placement.tokens.requests import TokenRequests
from paceline.placement.tokens.simulator import FOREVER, TokenModel, TokenResult, result_of

Groups = Sequence[Mapping[str, TokenProfile]]


@dataclass(frozen=True)
class Pools:
    """Two pools of groups.

    Attributes:
        prefill, decode: their groups, each with the models that it holds.
        move_seconds: by model, seconds that the keys and values of one token take from one pool to the other.
    """

    prefill: Groups
    decode: Groups
    move_seconds: Mapping[str, float]


def simulate_pools(
    requests: TokenRequests, models: Sequence[TokenModel], pools: Pools, overhead: float = 0.0
) -> TokenResult:
    """Play `requests` through both pools.

    A request goes to the group where it makes fewest late and ends first, in either pool. It is turned away at its
    arrival, if it would be late as things stand in both. Routes are groups of the decode pool; `busy` has both pools.
    """
    return _Run(requests, models, pools, overhead).result()


class _Run:
    def __init__(self, requests: TokenRequests, models: Sequence[TokenModel], pools: Pools, overhead: float) -> None:
        self._requests, self._models, self._overhead = requests, models, overhead
        self._move = [pools.move_seconds.get(model.name, 0.0) for model in models]
        self._prefill = [TokenGroup(held) if held else None for held in pools.prefill]
        self._decode = [TokenGroup(held) if held else None for held in pools.decode]
        self._readers = [[g for g, held in enumerate(pools.prefill) if m.name in held] for m in models]
        self._writers = [[g for g, held in enumerate(pools.decode) if m.name in held] for m in models]
        self._lengths = [Lengths(model.expected_tokens) for model in models]
        self._latency, self._first = (np.full(requests.num_requests, np.nan) for _ in range(2))
        self._routes = np.full(requests.num_requests, -1)
        self._moving: list[tuple[float, int, float]] = []
        """(when its keys and values will be there, request, when its first token came), a heap."""

    def result(self) -> TokenResult:
        """All requests in order of arrival, then the rest of what they left."""
        times, models = self._requests.arrivals.times.tolist(), self._requests.arrivals.models.tolist()
        for number, (now, model) in enumerate(zip(times, models, strict=True)):
            self._advance(now)
            self._arrive(number, model, now)
        self._advance(FOREVER)
        busy = np.array([0.0 if group is None else group.busy for group in (*self._prefill, *self._decode)])
        return result_of(self._requests, self._models, self._latency, self._first, self._routes, busy)

    def _arrive(self, number: int, model: int, now: float) -> None:
        spec, prompt = self._models[model], self._requests.prompt_tokens[number]
        first_by = now + min(spec.slo_first, spec.slo) - self._overhead
        reads = TokenAsk(spec.name, prompt, 1.0, first_by, first_by)
        reading = _best(self._prefill, self._readers[model], reads, now)
        if reading is None or reading[0].is_late or reading[0].makes_late:
            return
        first = reading[0].first
        delay = first + self._move[model] * prompt - now
        writes = self._writing(number, model, now, now, delay)
        writing = _best(self._decode, self._writers[model], writes, now)
        if writing is None or writing[0].is_late or writing[0].makes_late:
            return
        group = self._prefill[reading[1]]
        assert group is not None
        group.join(number, reads, now, 1.0)

    def _writing(self, number: int, model: int, now: float, first: float, delay: float = 0.0) -> TokenAsk:
        """A request whose prompt was read, as the decode pool sees it; `delay` is what it will come later than now."""
        spec, arrival = self._models[model], self._requests.arrivals.times[number]
        by = arrival + spec.slo - self._overhead - delay
        prompt, expected = self._requests.prompt_tokens[number], self._lengths[model].expected()
        return TokenAsk(spec.name, prompt, expected, by, pace=spec.slo_token, first=max(first, 1e-9))

    def _advance(self, until: float) -> None:
        """Both pools up to that time; those whose keys and values have come join the decode pool in that order."""
        for group in self._prefill:
            for number, first, _ in group.advance(until) if group else ():
                model = int(self._requests.arrivals.models[number])
                there = first + self._move[model] * self._requests.prompt_tokens[number]
                heapq.heappush(self._moving, (there, number, first))
        while self._moving and self._moving[0][0] <= until:
            self._join(*heapq.heappop(self._moving))
        self._generate(until)

    def _join(self, now: float, number: int, first: float) -> None:
        model = int(self._requests.arrivals.models[number])
        self._first[number] = first + self._overhead - self._requests.arrivals.times[number]
        if self._requests.output_tokens[number] <= 1:
            self._routes[number] = self._writers[model][0]
            self._end(number, first)
            return
        self._generate(now)
        ask = self._writing(number, model, now, first)
        found = _best(self._decode, self._writers[model], ask, now)
        assert found is not None
        group = self._decode[found[1]]
        assert group is not None
        group.join(number, ask, now, self._requests.output_tokens[number])
        self._routes[number] = found[1]

    def _generate(self, until: float) -> None:
        for group in self._decode:
            for number, _, end in group.advance(until) if group else ():
                self._end(number, end)

    def _end(self, number: int, end: float) -> None:
        self._latency[number] = end + self._overhead - self._requests.arrivals.times[number]
        self._lengths[int(self._requests.arrivals.models[number])].learn(self._requests.output_tokens[number])


def _best(
    groups: Sequence[TokenGroup | None], holding: Sequence[int], ask: TokenAsk, now: float
) -> tuple[Outlook, int] | None:
    """Where it makes fewest late and ends first; None where nobody holds its model."""
    outlooks = [(group.consider(ask, now), g) for g in holding if (group := groups[g]) is not None]
    if not outlooks:
        return None
    return min(outlooks, key=lambda pair: (pair[0].is_late + pair[0].makes_late, pair[0].end, pair[1]))
