"""Simulation of requests that are generated token by token, with the real scheduler and durations of passes.

In `simulator/`, a request is one pass. A language model's request is a prefill and many decodes, which share passes
with other requests and may be speculative. Here `scheduling.Scheduler` decides as in an engine, and a cost profile
gives the duration of each pass. Not for real tokens: every token is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.acceptance import Acceptance, SameRate
from paceline.placement.scheduled import context_per_row, refuse_prefix_caching, simulated_request
from paceline.placement.tokens import TokenProfile
from paceline.scheduling import Commit, Grant, PagePool, Scheduler, SchedulerConfig, StepPlan, StepResult
from paceline.speculation import CostProfile, Fixed, FixedPrices, LengthPolicy
from paceline.theory.round import Round, draft_seconds, round_seconds


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One request: arrival in seconds, numbers of prompt and output tokens."""

    arrival: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class ServingModel:
    """A target with its drafter, given by costs and rates.

    Args:
        pass_seconds: t(M, context), seconds of a target pass over M rows with that mean context; or a planner's
            profile, which separates decoding from prefill rows and includes costs per request and per step.
        acceptance_rate: alpha, the probability that a drafted token is accepted given that those before it were.
        acceptance: model of acceptance instead of alpha, e.g. a `Trace` of real answers.
        draft_seconds: of one draft step; the drafts of a pass are batched, one step per token of the longest.
        length: policy of the draft length; none is drafted by default.
        config: limits and policy of the scheduler.
        num_pages, page_size: size of the KV cache.
    """

    pass_seconds: CostProfile | TokenProfile
    acceptance_rate: float = 0.0
    draft_seconds: float = 0.0
    length: LengthPolicy = field(default_factory=lambda: Fixed(0))
    config: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(prefix_caching=False))
    num_pages: int = 4096
    page_size: int = 16
    acceptance: Acceptance | None = None

    def __post_init__(self) -> None:
        SameRate(self.acceptance_rate)
        if not 0 <= self.draft_seconds < float("inf"):
            raise InvalidParameter("draft_seconds", f"{self.draft_seconds}", "give seconds, 0 or more")
        refuse_prefix_caching(self.config)

    def target_seconds(self, rows: float, context: float = 0.0) -> float:
        """Seconds of a target pass over `rows` rows of one decoding request."""
        cost = self.pass_seconds
        return cost.pass_seconds(rows, 1, context) if isinstance(cost, TokenProfile) else cost(rows, context)

    def step_seconds(self, plan: StepPlan, one: Round, prices: FixedPrices) -> float:
        """Seconds of a step, drafts included."""
        cost = self.pass_seconds
        if not isinstance(cost, TokenProfile):
            return round_seconds(one, prices)
        decodes = [grant for grant in plan.grants if grant.is_decode]
        chunks = [grant for grant in plan.grants if not grant.is_decode]
        num_rows, context, read_before = (
            one.num_requests + one.num_nodes,
            context_per_row(decodes),
            context_per_row(chunks),
        )
        target = cost.pass_seconds(num_rows, len(plan.grants), context, one.num_prefill_rows, read_before)
        return target + draft_seconds(one, prices)


@dataclass(frozen=True)
class ServingResult:
    """Result of a simulation. Arrays are in the order of the requests.

    Attributes:
        ttft: float64 [requests], seconds from arrival to the first token.
        tbt: float64 [gaps], seconds between consecutive commits of a request, over all requests; the tokens of one pass
            are one commit.
        latency: float64 [requests], seconds from arrival to the last token.
        output_tokens: int64 [requests].
        seconds: from the first arrival to the last token.
        num_passes: number of target passes. num_decodes: decoding requests, summed over passes.
        acceptance_length: mean tokens per decode, including the target's own; 1 without speculation.
    """

    ttft: np.ndarray
    tbt: np.ndarray
    latency: np.ndarray
    output_tokens: np.ndarray
    seconds: float
    num_passes: int
    num_decodes: int
    acceptance_length: float

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return float(self.output_tokens.sum()) / self.seconds

    def slo_attainment(self, ttft: float, time_per_token: float) -> float:
        """Fraction of requests with TTFT at most `ttft` and mean time per further token at most `time_per_token`."""
        pace = (self.latency - self.ttft) / np.maximum(self.output_tokens - 1, 1)
        return float(((self.ttft <= ttft) & (pace <= time_per_token)).mean())


def simulate_serving(requests: Sequence[TokenRequest], model: ServingModel, seed: int = 0) -> ServingResult:
    """Serve `requests`, sorted by arrival, from the first arrival to the last token.

    Raises:
        InvalidParameter: no or unsorted requests, or one that the scheduler refuses (too long for model or cache).
    """
    if not requests:
        raise InvalidParameter("requests", "there are none", "give at least one")
    if any(later.arrival < sooner.arrival for sooner, later in pairwise(requests)):
        raise InvalidParameter("requests", "arrivals are out of order", "sort them by arrival")
    return _Serving(requests, model, np.random.default_rng(seed)).run()


def _round_of(plan: StepPlan, results: Sequence[StepResult]) -> Round:
    """The work of a step as a `Round`; drafts are batched, one draft step per token of the longest."""
    pairs = zip(plan.grants, results, strict=True)
    drafts = [result.num_draft_tokens for grant, result in pairs if grant.is_decode]
    return Round(len(drafts), sum(drafts), max(drafts, default=0), context_per_row(plan.grants), plan.num_prefill_rows)


class _Serving:
    """The state of a simulation: clock, scheduler and measurements."""

    def __init__(self, requests: Sequence[TokenRequest], model: ServingModel, rng: np.random.Generator) -> None:
        self.model = model
        self.rng = rng
        self.acceptance = model.acceptance or SameRate(model.acceptance_rate)
        self.prices = FixedPrices(model.target_seconds, lambda _num_requests, _context: model.draft_seconds)
        self.scheduler = Scheduler(model.config, PagePool(model.num_pages, model.page_size), model.length)
        self.states = [
            simulated_request(index, request.prompt_tokens, request.output_tokens, request.arrival)
            for index, request in enumerate(requests)
        ]
        self.numbers = {state.request_id: number for number, state in enumerate(self.states)}
        self.now = requests[0].arrival
        self.num_passes = self.num_decodes = self.decoded = 0
        self.last_commit: dict[str, float] = {}
        self.gaps: list[float] = []

    def run(self) -> ServingResult:
        arriving = 0
        while arriving < len(self.states) or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, self.states[arriving].arrival_time)
            while arriving < len(self.states) and self.states[arriving].arrival_time <= self.now:
                self.scheduler.add(self.states[arriving])
                arriving += 1
            self._step()
        return self._result()

    def _step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        decoded = [self._compute(grant) for grant in plan.grants if grant.is_decode]
        plan = self.scheduler.fill_up(sum([result.num_draft_tokens for result in decoded]))
        results = decoded + [self._compute(grant) for grant in plan.grants if not grant.is_decode]
        self.now += self.model.step_seconds(plan, _round_of(plan, results), self.prices)
        self.num_passes += 1
        commits = self.scheduler.update(results, self.now)
        for grant, commit in zip(plan.grants, commits, strict=True):
            self._see(grant, commit)

    def _compute(self, grant: Grant) -> StepResult:
        """The simulated outcome of a pass for one request: a prefix of the draft is accepted."""
        if not grant.is_decode:
            return StepResult(grant.request.request_id, grant.num_prefill_tokens, (0,) * grant.needs_logits)
        state = grant.request
        number, budget = self.numbers[state.request_id], grant.draft_budget
        drafted, stood = self.acceptance.draft(number, state.num_output_tokens, budget, self.rng)
        return StepResult(state.request_id, 0, (0,) * (stood + 1), drafted, stood < drafted)

    def _see(self, grant: Grant, commit: Commit) -> None:
        if grant.is_decode:
            self.num_decodes += 1
            self.decoded += len(commit.token_ids)
        name = commit.request.request_id
        if commit.token_ids and name in self.last_commit:
            self.gaps.append(self.now - self.last_commit[name])
        if commit.token_ids:
            self.last_commit[name] = self.now

    def _result(self) -> ServingResult:
        arrivals = np.array([state.arrival_time for state in self.states])
        firsts = np.array([state.first_token_time for state in self.states], np.float64)
        ends = np.array([state.finish_time for state in self.states], np.float64)
        return ServingResult(
            ttft=firsts - arrivals,
            tbt=np.array(self.gaps),
            latency=ends - arrivals,
            output_tokens=np.array([state.num_output_tokens for state in self.states]),
            seconds=self.now - arrivals[0],
            num_passes=self.num_passes,
            num_decodes=self.num_decodes,
            acceptance_length=self.decoded / self.num_decodes if self.num_decodes else 1.0,
        )
