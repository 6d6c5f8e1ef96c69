"""`Evaluator`: prepared once per case, it tells many placements apart quickly.

A request touches only the groups that hold its model. Groups that share models, directly or through others, form a
*component*; components do not feel each other, so each is simulated alone and its outcome remembered. A search that
changes one group pays for that group's component only.
"""

from typing import NamedTuple

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.placement import Group, Placement, validate
from paceline.placement.profile import ParallelConfig
from paceline.placement.rules import ControllerRules
from paceline.placement.simulator.compiled import compiled_run, compiled_run_batched
from paceline.placement.simulator.replicas import ReplicaMaker, Replicas
from paceline.placement.simulator.result import Score, SimulationResult, fractions, nearest_rank
from paceline.placement.simulator.streams import Streams
from paceline.placement.simulator.token_evaluator import Tally, TokenEvaluator, components
from paceline.placement.workload import Workload

MAX_REMEMBERED = 20_000
MAX_REMEMBERED_BYTES = 512 * 2**20
"""Component outcomes kept, and their bytes: 16 for each group of the component and model of the case."""

MANY_REQUESTS = 20_000_000
"""From here on a simulation keeps no more than a latency for each request, and sums what was summed on the way."""

NO_LIMIT = 2**62
"""More rejected requests than any workload has."""

_NONE, _NOWHERE = np.empty(0), np.empty(0, np.int32)


class ComponentOutcome(NamedTuple):
    """What happened in one component.

    Attributes:
        latency_sum: seconds, over served requests.
        served, rejected: int64 [groups, models], in the order of the component's groups and of all models of the case.
        busy: float64 [groups, stages], seconds.
    """

    latency_sum: float
    served: np.ndarray
    rejected: np.ndarray
    busy: np.ndarray


class Evaluator:
    """The simulator over one case.

    Args:
        case: cluster, models, profiles and workload.
        workload: other arrivals than the case's.
        rules: other rules than the case's.

    Raises:
        InvalidParameter: the case has drafters whose place is not chosen.
    """

    def __init__(self, case: Case, workload: Workload | None = None, rules: ControllerRules | None = None) -> None:
        if case.drafts:
            names = ", ".join(case.models[m].name for m in case.drafts)
            remedy = "plan with coplacement.coplan, or choose with coplacement.resolve"
            raise InvalidParameter("draft", f"where the drafters of {names} live is not chosen", remedy)
        self.case = case if rules is None else case.with_rules(rules)
        self.rules = self.case.rules
        self.is_batched = self.case.batch_sizes != (1,)
        """Whether requests may share passes."""
        self.workload = case.workload if workload is None else workload
        self.requests_of = self.workload.counts(len(case.models))
        """int64 [models], requests for each model."""
        self._slos = np.array([model.slo for model in case.models], np.float32)
        self._replicas = ReplicaMaker(self.case)
        self._streams = Streams(self.workload, len(case.models))
        self._outcomes: dict[tuple[Group, ...], ComponentOutcome] = {}
        self._num_bytes = 0

    def score(self, placement: Placement) -> Score:
        """How `placement` fares, from remembered components where possible. Memory and devices are not checked."""
        groups = placement.groups
        served, busy, latency_sum = np.zeros(len(self.case.models), np.int64), np.zeros(len(groups)), 0.0
        for members in components(groups):
            outcome = self.component(tuple(groups[g] for g in members))
            latency_sum += outcome.latency_sum
            served += outcome.served.sum(axis=0)
            for g, seconds in zip(members, outcome.busy.sum(axis=1), strict=True):
                busy[g] = seconds / groups[g].parallel.pipeline
        num_served = int(served.sum())
        return Score(self.workload.num_requests, num_served, latency_sum, served, self.requests_of - served, busy)

    def component(self, groups: tuple[Group, ...]) -> ComponentOutcome:
        """Simulate `groups` alone, on the requests for the models they hold. Their order decides ties."""
        if groups not in self._outcomes:
            outcome = self._run(self._replicas.make(groups))
            self._num_bytes += outcome.served.nbytes + outcome.rejected.nbytes
            if len(self._outcomes) >= MAX_REMEMBERED or self._num_bytes > MAX_REMEMBERED_BYTES:
                self._outcomes.clear()
                self._num_bytes = outcome.served.nbytes + outcome.rejected.nbytes
            self._outcomes[groups] = outcome
        return self._outcomes[groups]

    def simulate(self, placement: Placement, keep_latencies: bool = False) -> SimulationResult:
        """All there is to know about `placement` on the workload.

        Raises:
            InvalidParameter: the case's cluster cannot hold it (`placement.validate`).
        """
        validate(placement, self.case.cluster, self.case.models, self.case.profiles)
        num_requests = self.workload.num_requests
        replicas = self._replicas.make(placement.groups, range(len(self.case.models)))
        is_large = num_requests >= MANY_REQUESTS and not keep_latencies and not self.is_batched
        latencies = np.full(num_requests, np.nan)
        routes = _NOWHERE if is_large else np.full(num_requests, -1, np.int32)
        outcome = self._run(replicas, latencies, routes)
        if is_large:
            num_served = int(outcome.served.sum())
            mean, p99 = outcome.latency_sum / max(num_served, 1), _rank_in_place(latencies, num_served, 0.99)
        else:
            in_time = latencies[routes >= 0]
            num_served = len(in_time)
            mean, p99 = float(in_time.mean()) if num_served else 0.0, nearest_rank(in_time, 0.99)
        return SimulationResult(
            slo_attainment=num_served / num_requests,
            mean_latency_served=mean,
            p99_latency_served=p99,
            num_requests=num_requests,
            num_rejected=num_requests - num_served,
            model_attainment=fractions(outcome.served.sum(axis=0), self.requests_of),
            group_attainment=fractions(outcome.served.sum(axis=1), (outcome.served + outcome.rejected).sum(axis=1)),
            group_requests=outcome.served.sum(axis=1),
            utilization=self._utilization(replicas, outcome.busy),
            latencies=latencies if keep_latencies else None,
            routes=np.append(replicas.group, np.int32(-1))[routes] if keep_latencies else None,
        )

    def _utilization(self, replicas: Replicas, busy: np.ndarray) -> np.ndarray:
        there = np.arange(busy.shape[1]) < replicas.num_stages[:, None]
        return np.where(there, busy / max(self.workload.duration, 1e-12), np.nan)

    def tally(self, groups: tuple[Group, ...], max_rejected: int = NO_LIMIT) -> Tally:
        """Simulate a component, but stop at the first request turned away beyond `max_rejected`.

        For searches that only ask whether a placement can still be good enough. Nothing is remembered.
        """
        outcome = self._run(self._replicas.make(groups), max_rejected=max_rejected)
        served = int(outcome.served.sum())
        return Tally(served, outcome.latency_sum, served + int(outcome.rejected.sum()))

    def stage_seconds(self, model: int, parallel: ParallelConfig) -> np.ndarray:
        """Busy seconds per stage of a request for `model` that goes alone, float32 [stages], overheads included."""
        return self._replicas.stage_seconds(model, parallel)[0]

    def least_stage_seconds(self, model: int, parallel: ParallelConfig) -> np.ndarray:
        """Busy seconds per stage and request, float32 [stages], in the batch where that is least."""
        sizes = np.array(self.case.batch_sizes, np.float32)
        return (self._replicas.stage_seconds(model, parallel) / sizes[:, None]).min(axis=0)

    def busy_seconds(self, model: int, parallel: ParallelConfig) -> float:
        """Least seconds that a request keeps the stages of its group busy, all stages together."""
        return float(np.sum(self.least_stage_seconds(model, parallel), dtype=np.float64))

    def work_seconds(self, model: int, parallel: ParallelConfig) -> float:
        """Least seconds that a request keeps the mean stage of its group busy."""
        return self.busy_seconds(model, parallel) / parallel.pipeline

    def lone_seconds(self, model: int, parallel: ParallelConfig) -> float:
        """Seconds from arrival to answer of a request that finds every stage idle."""
        return float(np.sum(self.stage_seconds(model, parallel), dtype=np.float64)) + self.rules.overhead

    def _run(
        self,
        replicas: Replicas,
        latencies: np.ndarray = _NONE,
        routes: np.ndarray = _NOWHERE,
        max_rejected: int = NO_LIMIT,
    ) -> ComponentOutcome:
        """Either kernel over the requests for the models of `replicas`; fills in latencies and routes unless empty."""
        times, models = self._streams.of(replicas.models)
        counts = np.zeros((2, len(replicas.group)), np.int64)
        arrivals = times, models, self._slos[list(replicas.models)], replicas.first_replica, replicas.group
        if not self.is_batched:
            cost = replicas.latency[:, 0], replicas.num_stages, self.rules.overhead, max_rejected
            latency_sum = compiled_run()(*arrivals, *cost, counts[0], counts[1], latencies, routes)
            busy = np.zeros((len(replicas.num_stages), replicas.latency.shape[2]))
            np.add.at(busy, replicas.group, counts[0][:, None] * replicas.latency[:, 0])
        else:
            cost = replicas.latency, np.array(self.case.batch_sizes), replicas.num_stages, self.rules.overhead
            latencies = latencies if len(latencies) else np.full(len(times), np.nan)
            routes = routes if len(routes) else np.full(len(times), -1, np.int32)
            busy = compiled_run_batched()(*arrivals, *cost, counts[0], counts[1], latencies, routes)
            latency_sum = float(np.nansum(latencies)) if counts[1].sum() <= max_rejected else float("nan")
        table = np.zeros((2, len(replicas.num_stages), len(self.case.models)), np.int64)
        table[:, replicas.group, replicas.model] = counts
        return ComponentOutcome(latency_sum, table[0], table[1], busy)


def _rank_in_place(latencies: np.ndarray, count: int, fraction: float) -> float:
    """`nearest_rank` of the `count` latencies that are numbers, with no copy made: their order is lost."""
    if not count:
        return 0.0
    rank = min(int(count * fraction), count - 1)
    latencies.partition(rank)  # NaN come last
    return float(latencies[rank])


def simulate(
    placement: Placement, case: Case, workload: Workload | None = None, keep_latencies: bool = False
) -> SimulationResult:
    """`simulate` of the case's evaluator for a single placement."""
    if case.is_generated:
        return TokenEvaluator(case, workload).simulate(placement, keep_latencies)
    return Evaluator(case, workload).simulate(placement, keep_latencies)
