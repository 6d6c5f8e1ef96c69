"""`Evaluator`: prepared once per case, it tells many placements apart quickly.

A request touches only the groups that hold its model. Groups that share models, directly or through others, form a
*component*; components do not feel each other, so each is simulated alone and its outcome remembered. A search that
changes one group pays for that group's component only.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.placement.case import Case
from paceline.placement.placement import Group, Placement, validate
from paceline.placement.profile import ParallelConfig
from paceline.placement.simulator.kernel import run
from paceline.placement.simulator.result import Score, SimulationResult, nearest_rank
from paceline.placement.workload import Workload

MAX_REMEMBERED = 200_000
"""Component outcomes kept; a few hundred bytes each."""

MAX_STREAMS_BYTES = 256 * 2**20
"""Bytes of arrivals kept, merged per set of models."""


@dataclass(frozen=True, slots=True)
class ControllerRules:
    """What serving adds to a profile's latencies.

    Args:
        overhead: seconds between a request's last stage and its answer.
        stage_overhead: each stage takes 1 + `stage_overhead` x (number of stages) times its profiled latency.
    """

    overhead: float = 0.011
    stage_overhead: float = 0.009


class ComponentOutcome(NamedTuple):
    """What happened in one component.

    Attributes:
        latency_sum: seconds, over served requests.
        served, rejected: int64 [groups, models], in the order of the component's groups and of all models of the case.
    """

    latency_sum: float
    served: np.ndarray
    rejected: np.ndarray


class _Holds(NamedTuple):
    """Which groups hold which models, in the kernel's form (`kernel.run`), models numbered within a component."""

    models: tuple[int, ...]
    first_hold: np.ndarray
    group: np.ndarray
    latency: np.ndarray
    num_stages: np.ndarray


class Evaluator:
    """The simulator over one case.

    Args:
        case: cluster, models, profiles and workload.
        workload: other arrivals than the case's.
        rules: what serving adds.
    """

    def __init__(self, case: Case, workload: Workload | None = None, rules: ControllerRules | None = None) -> None:
        self.case = case
        self.rules = ControllerRules() if rules is None else rules
        self.workload = case.workload if workload is None else workload
        num_models = len(case.models)
        self.requests_of = np.bincount(self.workload.models, minlength=num_models)
        """int64 [models], requests for each model."""
        order = np.argsort(self.workload.models, kind="stable").astype(np.int32)
        self._positions = np.split(order, np.cumsum(self.requests_of)[:-1])
        self._slos = np.array([model.slo for model in case.models], np.float32)
        self._busy: dict[tuple[str, ParallelConfig], np.ndarray] = {}
        self._outcomes: dict[tuple[Group, ...], ComponentOutcome] = {}
        self._streams: OrderedDict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._streams_bytes = 0

    def stage_seconds(self, model: int, parallel: ParallelConfig) -> np.ndarray:
        """Busy seconds per stage of one request for `model`, float32 [stages], overheads included."""
        key = (self.case.models[model].profile_type, parallel)
        if key not in self._busy:
            latency = np.array(self.case.profile_of(model).stages(parallel).latency)
            self._busy[key] = (latency * (1 + self.rules.stage_overhead * parallel.pipeline)).astype(np.float32)
        return self._busy[key]

    def score(self, placement: Placement) -> Score:
        """How `placement` fares, from remembered components where possible. Memory and devices are not checked."""
        num_models, groups = len(self.case.models), placement.groups
        served, busy, latency_sum = np.zeros(num_models, np.int64), np.zeros(len(groups)), 0.0
        for members in components(groups):
            outcome = self.component(tuple(groups[g] for g in members))
            latency_sum += outcome.latency_sum
            served += outcome.served.sum(axis=0)
            for g, counts in zip(members, outcome.served, strict=True):
                busy[g] = sum(counts[m] * self.stage_seconds(m, groups[g].parallel).mean() for m in groups[g].models)
        num_served = int(served.sum())
        return Score(self.workload.num_requests, num_served, latency_sum, served, self.requests_of - served, busy)

    def component(self, groups: tuple[Group, ...]) -> ComponentOutcome:
        """Simulate `groups` alone, on the requests for the models they hold. Their order decides ties."""
        if groups not in self._outcomes:
            if len(self._outcomes) >= MAX_REMEMBERED:
                self._outcomes.clear()
            holds = self._holds(groups)
            times, models = self._stream(holds.models)
            none = np.empty(0)
            self._outcomes[groups] = self._run(holds, times, models, none, none.astype(np.int32))
        return self._outcomes[groups]

    def simulate(self, placement: Placement, keep_latencies: bool = False) -> SimulationResult:
        """All there is to know about `placement` on the workload.

        Raises:
            InvalidParameter: the case's cluster cannot hold it (`placement.validate`).
        """
        validate(placement, self.case.cluster, self.case.models, self.case.profiles)
        holds = self._holds(placement.groups, range(len(self.case.models)))
        latencies = np.full(self.workload.num_requests, np.nan)
        routes = np.full(self.workload.num_requests, -1, np.int32)
        outcome = self._run(holds, self.workload.times, self.workload.models, latencies, routes)
        return self._result(placement, outcome, latencies, routes, keep_latencies, holds)

    def _result(self, placement, outcome, latencies, routes, keep_latencies, holds) -> SimulationResult:
        in_time = latencies[~np.isnan(latencies)]
        num_requests, served = self.workload.num_requests, outcome.served
        if keep_latencies:
            routes = np.where(routes >= 0, holds.group[routes], -1) if len(holds.group) else routes
        return SimulationResult(
            slo_attainment=len(in_time) / num_requests,
            mean_latency_served=float(in_time.mean()) if len(in_time) else 0.0,
            p99_latency_served=nearest_rank(in_time, 0.99),
            num_requests=num_requests,
            num_rejected=num_requests - len(in_time),
            model_attainment=_fractions(served.sum(axis=0), self.requests_of),
            group_attainment=_fractions(served.sum(axis=1), (served + outcome.rejected).sum(axis=1)),
            group_requests=served.sum(axis=1),
            utilization=self._utilization(placement.groups, served),
            latencies=latencies if keep_latencies else None,
            routes=routes if keep_latencies else None,
        )

    def _utilization(self, groups: Sequence[Group], served: np.ndarray) -> np.ndarray:
        """Busy fraction per group and stage, float64 [groups, most stages], NaN beyond a group's stages."""
        most = max((group.parallel.pipeline for group in groups), default=0)
        busy = np.full((len(groups), most), np.nan)
        for g, group in enumerate(groups):
            busy[g, : group.parallel.pipeline] = 0
            for model in group.models:
                busy[g, : group.parallel.pipeline] += served[g, model] * self.stage_seconds(model, group.parallel)
        return busy / max(self.workload.duration, 1e-12)

    def _run(self, holds: _Holds, times, models, latencies, routes) -> ComponentOutcome:
        counts = np.zeros((2, len(holds.group)), np.int64)
        slos = self._slos[list(holds.models)]
        latency_sum = run(
            times,
            models,
            slos,
            holds.first_hold,
            holds.group,
            holds.latency,
            holds.num_stages,
            self.rules.overhead,
            counts[0],
            counts[1],
            latencies,
            routes,
        )
        table = np.zeros((2, len(holds.num_stages), len(self.case.models)), np.int64)
        model_of_hold = np.repeat(holds.models, np.diff(holds.first_hold)).astype(np.int64)
        table[:, holds.group, model_of_hold] = counts
        return ComponentOutcome(latency_sum, table[0], table[1])

    def _holds(self, groups: Sequence[Group], models: Sequence[int] | None = None) -> _Holds:
        if models is None:
            models = sorted({model for group in groups for model in group.models})
        pairs = sorted((model, g) for g, group in enumerate(groups) for model in group.models)
        most = max((group.parallel.pipeline for group in groups), default=1)
        latency = np.zeros((len(pairs), most), np.float32)
        for hold, (model, g) in enumerate(pairs):
            latency[hold, : groups[g].parallel.pipeline] = self.stage_seconds(model, groups[g].parallel)
        return _Holds(
            models=tuple(models),
            first_hold=np.searchsorted([model for model, _ in pairs], [*models, len(self.case.models)]).astype(
                np.int32
            ),
            group=np.array([g for _, g in pairs], np.int32),
            latency=latency,
            num_stages=np.array([group.parallel.pipeline for group in groups], np.int32),
        )

    def _stream(self, models: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Times and models (numbered within `models`) of the requests for `models`, in order of arrival."""
        if models in self._streams:
            self._streams.move_to_end(models)
            return self._streams[models]
        positions = np.sort(np.concatenate([self._positions[model] for model in models] or [np.empty(0, np.int32)]))
        number = np.zeros(len(self.case.models), np.int32)
        number[list(models)] = np.arange(len(models))
        stream = self.workload.times[positions], number[self.workload.models[positions]]
        self._streams[models] = stream
        self._streams_bytes += stream[0].nbytes + stream[1].nbytes
        while self._streams_bytes > MAX_STREAMS_BYTES and len(self._streams) > 1:
            old = self._streams.popitem(last=False)[1]
            self._streams_bytes -= old[0].nbytes + old[1].nbytes
        return stream


def simulate(placement: Placement, case: Case, workload: Workload | None = None, **kwargs) -> SimulationResult:
    """`Evaluator.simulate` for a single placement."""
    return Evaluator(case, workload).simulate(placement, **kwargs)


def components(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """Indices of groups that share models, directly or through others; each in increasing order."""
    found: list[tuple[set[int], list[int]]] = []
    for index, group in enumerate(groups):
        models, members = set(group.models), [index]
        apart = []
        for other in found:
            if models.isdisjoint(other[0]):
                apart.append(other)
            else:
                models |= other[0]
                members += other[1]
        found = [*apart, (models, members)]
    return [tuple(sorted(members)) for _, members in found]


def _fractions(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
