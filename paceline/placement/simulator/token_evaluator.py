"""`TokenEvaluator`: what `Evaluator` is for requests of one pass, for requests that are generated token by token.

Searches ask either alike. Memory that weights leave free in a group is for keys and values, shared evenly by its
models.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.model import NO_SLO
from paceline.placement.placement import Group, Placement, group_mem, validate
from paceline.placement.profile import ParallelConfig
from paceline.placement.simulator.result import Score, SimulationResult, fractions, nearest_rank
from paceline.placement.tokens import TokenAsk, TokenGroup, TokenModel, TokenProfile, TokenRequests, simulate_tokens
from paceline.placement.tokens.requests import drawn_lengths
from paceline.placement.workload import Workload

MAX_REMEMBERED_BYTES = 512 * 2**20
"""Of components' outcomes."""
EFFORT = 20
"""What a simulated request costs here, in those of one pass."""


class Tally(NamedTuple):
    """What a search wants to know of a component.

    Attributes:
        served: requests that met their deadline.
        latency_sum: seconds, over served requests; NaN when the simulation stopped early.
        simulated: requests looked at.
    """

    served: int
    latency_sum: float
    simulated: int


class _Outcome(NamedTuple):
    """One component: float64 [requests] latencies, bool in time, int64 routes among its groups; busy seconds."""

    numbers: np.ndarray
    latency: np.ndarray
    in_time: np.ndarray
    routes: np.ndarray
    busy: np.ndarray


class _Lone(NamedTuple):
    """A request of mean lengths that has a group to itself: seconds to its end, to its first token and per further
    token; tokens whose keys and values it has, and that there is room for."""

    end: float
    first: float
    pace: float
    need: float
    room: float


class TokenEvaluator:
    """The simulator over one case whose profiles have tokens.

    Args:
        case: cluster, models, profiles and workload; lengths that the workload does not have are drawn.
        workload: other arrivals than the case's.
    """

    def __init__(self, case: Case, workload: Workload | None = None) -> None:
        self.case = case
        self.workload = _with_lengths(case, case.workload if workload is None else workload)
        self.requests_of = self.workload.counts(len(case.models))
        """int64 [models], requests for each model."""
        self.specs = [_spec(case, m) for m in range(len(case.models))]
        """Names, promises and mean answers of all models."""
        self._outcomes: dict[tuple[Group, ...], _Outcome] = {}
        self._num_bytes = 0
        self._lones: dict[tuple[str, float, float, ParallelConfig], _Lone] = {}

    @property
    def requests(self) -> TokenRequests:
        """All of them, with their lengths."""
        assert self.workload.prompt_tokens is not None and self.workload.output_tokens is not None
        arrivals = Workload(self.workload.times, self.workload.models)
        return TokenRequests(arrivals, self.workload.prompt_tokens, self.workload.output_tokens)

    def profiles_of(self, group: Group) -> dict[str, TokenProfile]:
        """What passes of the group's models cost, and how many tokens' keys and values each has room for."""
        case, budget = self.case, self.case.cluster.part(group.parallel.device).mem_budget
        free = budget - max(group_mem(group, case.models, case.profiles), default=0.0)
        found = {}
        for m in group.models:
            stages = case.profile_of(m).stages(group.parallel)
            assert stages.tokens is not None
            room = free / len(group.models) / stages.kv_bytes if stages.kv_bytes else stages.tokens.kv_tokens
            tokens = stages.tokens.in_pipeline(group.parallel.pipeline)
            found[case.models[m].name] = tokens.with_kv_tokens(max(1.0, min(room, tokens.kv_tokens)))
        return found

    def score(self, placement: Placement) -> Score:
        """See `Evaluator.score`."""
        groups, num_models = placement.groups, len(self.case.models)
        served, busy, latency_sum = np.zeros(num_models, np.int64), np.zeros(len(groups)), 0.0
        for members in components(groups):
            outcome = self._component(tuple(groups[g] for g in members))
            latency_sum += float(outcome.latency[outcome.in_time].sum())
            served += np.bincount(self.workload.models[outcome.numbers[outcome.in_time]], minlength=num_models)
            busy[list(members)] = outcome.busy
        num_served = int(served.sum())
        return Score(self.workload.num_requests, num_served, latency_sum, served, self.requests_of - served, busy)

    def tally(self, groups: tuple[Group, ...], max_rejected: int = 0) -> Tally:
        """See `Evaluator.tally`; it never stops early."""
        outcome = self._component(groups)
        latency_sum = float(outcome.latency[outcome.in_time].sum())
        return Tally(int(outcome.in_time.sum()), latency_sum, EFFORT * len(outcome.numbers))

    def simulate(self, placement: Placement, keep_latencies: bool = False) -> SimulationResult:
        """See `Evaluator.simulate`. Served is who was answered as promised."""
        validate(placement, self.case.cluster, self.case.models, self.case.profiles)
        groups, count, models = placement.groups, self.workload.num_requests, self.workload.models
        latencies, routes, busy = np.full(count, np.nan), np.full(count, -1, np.int32), np.zeros(len(groups))
        sent, seconds = np.zeros(len(groups), np.int64), self.workload.duration
        for members in components(groups):
            outcome = self._component(tuple(groups[g] for g in members))
            taken = outcome.routes >= 0
            at = np.array(members)
            np.add.at(sent, at[outcome.routes[taken]], 1)
            kept = outcome.numbers[outcome.in_time]
            latencies[kept], routes[kept] = outcome.latency[outcome.in_time], at[outcome.routes[outcome.in_time]]
            busy[at] = outcome.busy
            if taken.any():
                ends = self.workload.times[outcome.numbers[taken]] + outcome.latency[taken]
                seconds = max(seconds, float(ends.max()))
        in_time = latencies[routes >= 0]
        served = np.bincount(routes[routes >= 0], minlength=len(groups))
        most = max((group.parallel.pipeline for group in groups), default=1)
        share = np.where(np.arange(most) < np.array([[g.parallel.pipeline] for g in groups]), busy[:, None], np.nan)
        return SimulationResult(
            slo_attainment=len(in_time) / count,
            mean_latency_served=float(in_time.mean()) if len(in_time) else 0.0,
            p99_latency_served=nearest_rank(in_time, 0.99),
            num_requests=count,
            num_rejected=count - len(in_time),
            model_attainment=fractions(np.bincount(models[routes >= 0], minlength=len(self.specs)), self.requests_of),
            group_attainment=fractions(served, sent),
            group_requests=served,
            utilization=share / max(seconds, 1e-12),
            latencies=latencies if keep_latencies else None,
            routes=routes if keep_latencies else None,
        )

    def busy_seconds(self, model: int, parallel: ParallelConfig) -> float:
        """A lower bound on what a request costs a group: next to nothing, since requests share passes."""
        return 1e-9

    def work_seconds(self, model: int, parallel: ParallelConfig) -> float:
        """Seconds of a full group that a request of mean lengths takes: what its tokens cost where all seats decode."""
        spec = self.case.models[model]
        tokens = self.case.profile_of(model).stages(parallel).tokens
        assert tokens is not None
        lane = tokens.seats / parallel.pipeline
        rows = lane * tokens.rows_per_request
        each = tokens.pass_seconds(rows, lane, spec.prompt_tokens) / (tokens.seats * tokens.tokens_per_pass)
        read_before = max(spec.prompt_tokens - tokens.token_budget, 0.0) / 2
        read = tokens.pass_seconds(0, 1, 0, tokens.token_budget, read_before) / tokens.token_budget / parallel.pipeline
        return spec.output_tokens * each + spec.prompt_tokens * read

    def lone_seconds(self, model: int, parallel: ParallelConfig) -> float:
        """Seconds of a request of mean lengths that has a group to itself; infinite where it breaks a promise."""
        lone, own = self._lone(model, parallel), self.specs[model]
        kept = lone.need <= lone.room and lone.first <= own.slo_first and lone.pace <= own.slo_token * (1 + 1e-9)
        return lone.end if kept else float("inf")

    def refusal(self, model: int, splits: Sequence[ParallelConfig]) -> InvalidParameter:
        """What keeps a request of mean lengths from being served as promised by any group of these splits."""
        spec, own, lone = self.case.models[model], self.specs[model], [self._lone(model, split) for split in splits]
        of_model = f"for model {spec.name!r}, whose"
        need, room = lone[0].need, max(each.room for each in lone)
        if room < need:
            problem = f"leaves room for keys and values of {max(room, 0):.0f} tokens {of_model} requests have {need:g}"
            return InvalidParameter("mem_budget", problem, "give more memory, or profile splits over more devices")
        fitting = [each for each in lone if each.need <= each.room]
        for name, found in (("slo_first", "first token takes"), ("slo_token", "further tokens take")):
            best = min(each.first if name == "slo_first" else each.pace for each in fitting)
            if best > getattr(own, name):
                problem = f"{getattr(own, name):g} s {of_model} {found} a lone request {best:.4g} s at best"
                return InvalidParameter(name, problem, "raise it above that, or profile faster splits")
        best = min(each.end for each in fitting)
        problem = f"{own.slo:g} s {of_model} request alone takes {best:.4g} s at best"
        return InvalidParameter("slo", problem, "raise the deadlines, or profile faster splits")

    def _lone(self, model: int, parallel: ParallelConfig) -> _Lone:
        """Played once for all models that are alike."""
        spec = self.case.models[model]
        alike = spec.profile_type, spec.prompt_tokens, spec.output_tokens, parallel
        if alike not in self._lones:
            self._lones[alike] = self._played_alone(model, parallel)
        return self._lones[alike]

    def _played_alone(self, model: int, parallel: ParallelConfig) -> _Lone:
        spec = self.case.models[model]
        profile = self.profiles_of(Group(parallel, (model,)))[spec.name]
        found = TokenGroup({spec.name: profile}).consider(
            TokenAsk(spec.name, spec.prompt_tokens, spec.output_tokens), 0
        )
        pace = (found.end - found.first) / max(spec.output_tokens - 1, 1)
        need, overhead = spec.prompt_tokens + spec.output_tokens, self.case.rules.overhead
        return _Lone(found.end + overhead, found.first + overhead, pace, need, profile.kv_tokens)

    def _component(self, groups: tuple[Group, ...]) -> _Outcome:
        """Simulate groups that share models, on the requests for these."""
        if groups not in self._outcomes:
            held = sorted({m for group in groups for m in group.models})
            numbers = np.flatnonzero(np.isin(self.workload.models, held))
            assert self.workload.prompt_tokens is not None and self.workload.output_tokens is not None
            arrivals = Workload(self.workload.times[numbers], self.workload.models[numbers])
            lengths = self.workload.prompt_tokens[numbers], self.workload.output_tokens[numbers]
            tables = [self.profiles_of(group) for group in groups]
            found = simulate_tokens(TokenRequests(arrivals, *lengths), self.specs, tables, self.case.rules.overhead)
            outcome = _Outcome(numbers, found.latency, found.in_time, found.routes, found.busy)
            self._num_bytes += sum(part.nbytes for part in outcome)
            if self._num_bytes > MAX_REMEMBERED_BYTES:
                self._outcomes.clear()
                self._num_bytes = sum(part.nbytes for part in outcome)
            self._outcomes[groups] = outcome
        return self._outcomes[groups]


def _spec(case: Case, index: int) -> TokenModel:
    model = case.models[index]
    slo = model.slo if model.slo < NO_SLO else float("inf")
    return TokenModel(model.name, slo, model.slo_first, model.slo_token, model.output_tokens)


def _with_lengths(case: Case, workload: Workload) -> Workload:
    """`workload` with a length for each prompt and answer: its own, or drawn for its model from a seed of its own."""
    if workload.prompt_tokens is not None and workload.output_tokens is not None:
        return workload
    prompts, outputs = np.ones(workload.num_requests), np.ones(workload.num_requests)
    for m, (model, rng) in enumerate(zip(case.models, np.random.default_rng(0).spawn(len(case.models)), strict=True)):
        of_model = np.flatnonzero(workload.models == m)
        prompts[of_model] = drawn_lengths(model.prompt_tokens, model.length_cv, len(of_model), rng)
        outputs[of_model] = drawn_lengths(model.output_tokens, model.length_cv, len(of_model), rng)
    return Workload(workload.times, workload.models, prompts, outputs)


def components(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """Indices of groups that share models, directly or through others; each in increasing order, by its last group."""
    leader = list(range(len(groups)))

    def led(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    holder: dict[int, int] = {}
    for index, group in enumerate(groups):
        for model in group.models:
            leader[led(holder.setdefault(model, index))] = index
            holder[model] = index
    found: dict[int, list[int]] = {}
    for index in range(len(groups)):
        found.setdefault(led(index), []).append(index)
    return [tuple(members) for members in sorted(found.values(), key=lambda members: members[-1])]
