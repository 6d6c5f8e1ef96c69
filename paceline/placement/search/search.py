"""`Search`: one search under way. It scores placements, remembers the best, and stops when time or effort is spent.

Which placements to try is up to the policies (`policies.py`); how one fares is the simulator's.
"""

import time
from collections.abc import Callable, Iterable
from math import isnan
from random import Random
from typing import NamedTuple

import numpy as np

from paceline.placement.case import Case
from paceline.placement.placement import Group, Placement
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.facts import Facts
from paceline.placement.search.goal import Goal
from paceline.placement.simulator import Evaluator, Tally, components
from paceline.placement.simulator.token_evaluator import TokenEvaluator

Groups = tuple[Group, ...]
SearchProgress = Callable[[float, float], None]
"""Told the share of the search that is done and the best attainment so far, both in [0, 1]."""


SIMULATION_COST = 2000
"""What preparing a simulation costs, in simulated requests."""

REPORT_EVERY = 64
"""Placements asked for between two reports of progress."""


MAX_EFFORT = 250_000_000
"""Simulated requests that a search spends unless told otherwise, at most."""

LARGE, LARGE_EFFORT = 2**14, 2_500_000_000
"""Pairs of a model and a device from which a case is planned as a large one (`large.py`), and the most it may spend."""


class TimeIsUp(Exception):
    """The time budget is over. Raised when a `Search` is asked to score; the planner catches it and keeps the best."""


class _EffortSpent(Exception):
    """A policy has simulated as many requests as `Search.within` allows it."""


class Score(NamedTuple):
    """How a placement fares; greater is better: more requests served (or more worth, see `Goal`), then a lower mean
    latency."""

    served: float
    negative_mean_latency: float


class Trial(NamedTuple):
    """A scored placement with the requests of each model not served, int64 [models] (or their worth, float64), and
    seconds each group was busy (its mean stage), float64 [groups]."""

    score: Score
    unserved: np.ndarray
    busy: np.ndarray


class Improvement(NamedTuple):
    """A new best placement: when it was found, what it reached, and by which step of the search."""

    seconds: float
    slo_attainment: float
    mean_latency_served: float
    found_by: str


class Search:
    """Scores placements of one case.

    Args:
        case: what to place.
        seed: of every random choice.
        time_budget: seconds after which scoring raises `TimeIsUp`; None for no limit.
        effort: simulated requests that annealing may spend, what is done besides counted in the same unit; None picks
            it by the size of the case.
        beam_width: selections that the policies by beam keep in each round.
        progress: told now and then how far the search is.
        clock: seconds.
    """

    def __init__(
        self,
        case: Case,
        *,
        seed: int = 0,
        time_budget: float | None = None,
        effort: int | None = None,
        beam_width: int = 1,
        progress: SearchProgress | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock, self.started = clock, clock()
        self.case = case
        self.evaluator = TokenEvaluator(case) if case.is_generated else Evaluator(case)
        self.facts = Facts(self.evaluator)
        self.random = Random(seed)
        self.time_budget = time_budget
        self.beam_width = beam_width
        self.effort = default_effort(self.facts) if effort is None else effort
        self.spent = 0
        """Simulated requests so far, and what the search did besides, counted in simulated requests."""
        self.best: Groups = ()
        self.best_score = Score(0, 0.0)
        self.history: list[Improvement] = []
        self.best_of_splits: dict[tuple[ParallelConfig, ...], tuple[Score, Groups]] = {}
        """The best placement for every multiset of groups' splits that a policy run by `within` tried."""
        self.step = ""
        self.done_before = 0.0
        """Share of the work that other searches did before this one, for the progress."""
        self._progress = progress
        self._allowed = float("inf")
        self._num_asked = 0
        self._known: dict[Groups, Score] = {}
        self._tallies: dict[Groups, Tally] = {}

    def score(self, groups: Iterable[Group], at_least: float = 0.0) -> Score | None:
        """Served requests and mean latency of `groups`; None as soon as fewer than `at_least` are sure to be served.

        Raises:
            TimeIsUp: the time budget is over.
        """
        self.check_time()
        groups = tuple(group for group in groups if group.models)
        if groups not in self._known:
            score = self._simulate(groups, at_least)
            if score is None:
                return None
            self._known[groups] = score
            self._offer(groups, score)
        return self._known[groups]

    def scored(self, groups: Iterable[Group]) -> Score:
        """`score` of a placement whose number is wanted whatever it is."""
        score = self.score(groups)
        assert score is not None
        return score

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return self.clock() - self.started

    def report(self, share: float | None = None) -> None:
        """Tell whoever watches which share of the search is done: of the effort, or of the time if that ends sooner."""
        if self._progress is None:
            return
        if share is None:
            of_time = self.seconds / self.time_budget if self.time_budget else 0.0
            share = min(max(self.spent / self.effort, of_time), 1.0)
            share = self.done_before + (1 - self.done_before) * share
        self._progress(share, self.best_score.served / self.facts.most)

    def examined(self, groups: Groups) -> "Trial":
        """`groups` scored, and what a greedy step wants to know. Groups may be empty."""
        self.check_time()
        found = self.evaluator.score(Placement(groups))
        self.spent += self._requests(groups) + SIMULATION_COST
        score, unserved, goal = Score(found.num_served, -found.mean_latency_served), found.unserved, self.facts.goal
        if goal is not None:
            score = score._replace(served=goal.worth(found.served))
            unserved = goal.urgency(found.served, found.unserved)
        self._offer(groups, score)
        return Trial(score, unserved, found.busy)

    def check_time(self) -> None:
        """Raise when the time budget is over, or the part of the effort that `within` granted."""
        if self.time_budget is not None and self.seconds > self.time_budget:
            raise TimeIsUp
        self._num_asked += 1
        if self._num_asked % REPORT_EVERY == 0:
            self.report()
        if self.spent > self._allowed:
            raise _EffortSpent

    def without_limit(self, policy: Callable[["Search"], object]) -> None:
        """Run a quick `policy` to its end even when time is up: what a plan must not fall behind."""
        limit, self.time_budget = self.time_budget, None
        try:
            policy(self)
        finally:
            self.time_budget = limit

    def within(self, requests: float, policy: Callable[["Search"], object]) -> None:
        """Run `policy` until it is done or has simulated `requests` requests; what it found is kept."""
        self._allowed = self.spent + requests
        try:
            policy(self)
        except _EffortSpent:
            pass
        finally:
            self._allowed = float("inf")

    def _simulate(self, groups: Groups, at_least: float) -> Score | None:
        """Component by component; those not simulated yet count as fully served until shown otherwise."""
        if self.facts.goal is not None:
            return self._weigh(groups, self.facts.goal, at_least)
        parts = [tuple(groups[i] for i in members) for members in components(groups)]
        bounds = [self._requests(part) for part in parts]
        bound, latency_sum = sum(bounds), 0.0
        for part, most in sorted(zip(parts, bounds, strict=True), key=lambda pair: pair[1]):
            if bound < at_least:
                return None
            tally = self._component(part, bound - at_least)
            if tally is None:
                return None
            bound += tally.served - most
            latency_sum += tally.latency_sum
        return Score(bound, -latency_sum / bound if bound else 0.0) if bound >= at_least else None

    def _weigh(self, groups: Groups, goal: Goal, at_least: float) -> Score | None:
        """By what requests in time are worth, which no simulation tells before its end."""
        found = self.evaluator.score(Placement(groups))
        self.spent += self._requests(groups) + SIMULATION_COST
        worth = goal.worth(found.served)
        return Score(worth, -found.mean_latency_served) if worth >= at_least else None

    def _requests(self, part: Groups) -> int:
        return sum(self.facts.requests_of[m] for m in {m for group in part for m in group.models})

    def _component(self, part: Groups, spare: float) -> Tally | None:
        """Served requests and their summed latency; None when more than `spare` are turned away."""
        if part not in self._tallies:
            tally = self.evaluator.tally(part, int(spare))
            self.spent += tally.simulated + SIMULATION_COST
            if isnan(tally.latency_sum):
                return None
            self._tallies[part] = tally
        return self._tallies[part]

    def _offer(self, groups: Groups, score: Score) -> None:
        holding = tuple(group for group in groups if group.models)
        if self._allowed < float("inf"):
            splits = tuple(sorted(group.parallel for group in groups))
            if splits not in self.best_of_splits or score > self.best_of_splits[splits][0]:
                self.best_of_splits[splits] = score, holding
        if score > self.best_score:
            self.best, self.best_score = holding, score
            attainment = score.served / self.facts.most
            self.history.append(Improvement(self.seconds, attainment, -score.negative_mean_latency, self.step))


def canonical(groups: Iterable[Group]) -> Groups:
    """Groups in one order, so that equal placements are recognised. The order decides ties in routing only."""
    return tuple(sorted(groups, key=lambda group: (group.parallel, group.models)))


def default_effort(facts: Facts) -> int:
    """Simulated requests: by the number of choices, up to half a minute or so on one core."""
    scorings = 60 * (facts.num_models + facts.num_devices)
    most = LARGE_EFFORT if facts.num_models * facts.num_devices >= LARGE else MAX_EFFORT
    return min(scorings * (facts.num_requests + SIMULATION_COST), most)


def empty_groups(splits: Iterable[ParallelConfig]) -> Groups:
    """Groups of these splits that hold nothing yet."""
    return tuple(Group(split) for split in splits)
