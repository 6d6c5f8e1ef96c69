"""`plan`: from a case to a placement, what it reaches, and how long it took to find, which is never left out."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.placement import Placement
from paceline.placement.search.baselines import WINDOW, Window
from paceline.placement.search.device_types import search_types, unplaceable
from paceline.placement.search.policies import BEAMS, WINDOWED, policy_named
from paceline.placement.search.sampling import Sample, most_requests, windows_of
from paceline.placement.search.search import Improvement, Search, SearchProgress, TimeIsUp
from paceline.placement.simulator import Evaluator, SimulationResult, simulate
from paceline.placement.simulator.token_evaluator import TokenEvaluator
from paceline.placement.workload import Workload


@dataclass(frozen=True)
class Plan:
    """A placement and how it was come by.

    Attributes:
        placement: which groups hold which models. For clockwork++ and replan that of the last window.
        result: how it fares on the case's workload; with windows, that of the last window's placement alone.
        planning_seconds: from the first look at the case to the placement, compilation left out.
        policy: which policy searched.
        finished: False when the time budget or an interrupt ended the search; the placement is the best until then.
        history: every new best on the way.
        unplaceable: models that no group can serve, each with the reason; they are in no group.
        windows: clockwork++ and replan only, their placements in turn.
        sample: what the search looked at, where that was not the whole workload; its history tells of that sample.
    """

    placement: Placement
    result: SimulationResult
    planning_seconds: float
    policy: str
    finished: bool
    history: tuple[Improvement, ...]
    unplaceable: Mapping[int, InvalidParameter]
    windows: tuple[Window, ...] = ()
    sample: Sample | None = None

    @property
    def slo_attainment(self) -> float:
        """Fraction of all requests in time; all windows together where there are windows."""
        if not self.windows:
            return self.result.slo_attainment
        return sum(window.num_served for window in self.windows) / self.result.num_requests

    @property
    def mean_latency_served(self) -> float:
        """Seconds, over served requests; all windows together where there are windows."""
        if not self.windows:
            return self.result.mean_latency_served
        num_served = sum(window.num_served for window in self.windows)
        return sum(window.latency_sum for window in self.windows) / max(num_served, 1)


def plan(
    case: Case,
    policy: str = "auto",
    *,
    time_budget: float | None = None,
    effort: int | None = None,
    seed: int = 0,
    beam_width: int = 1,
    window: float | None = None,
    allow_unplaceable: bool = False,
    progress: SearchProgress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Search for a placement of `case`.

    Long traces are searched on windows of them (`sampling.py`); the result is of the whole trace always. The same seed
    and effort give the same plan on any machine, unless the time budget ends the search. An interrupt
    (Ctrl-C) ends it too and returns the best so far.

    Args:
        case: cluster, models, profiles, workload.
        policy: one of `policies.NAMES`; auto enumerates small cases and anneals the others.
        time_budget: seconds; None for as long as it takes.
        effort: simulated requests that annealing may spend; None for a default by the size of the case.
        seed: of annealing's random choices.
        beam_width: selections that mp-beam and sr-search keep in each round, the paper's k. Time grows with it.
        window: seconds of a window of clockwork++ and replan; 60 for None.
        allow_unplaceable: plan without the models that no group can serve, instead of refusing the case.
        progress: told now and then how far the search is.
        clock: seconds; that of the wall by default.

    Raises:
        InvalidParameter: an unknown policy, a budget or a width that is not positive, a width or a window for a policy
            without one, no requests, or a model that no group of the cluster can serve: too large, or slower than its
            deadline even alone.
    """
    _check(case, policy, time_budget, effort)
    _check_beam(policy, beam_width)
    if window is not None and policy not in WINDOWED:
        raise InvalidParameter("window", f"{policy} has no windows", f"leave it out, or use {' or '.join(WINDOWED)}")
    _compile(case)
    began = clock()
    short = None if policy in WINDOWED else windows_of(case, most_requests(time_budget), seed)
    searched = case if short is None else short.case
    refused = unplaceable(searched) if case.cluster.types else {}
    if len(refused) == len(case.models):
        raise next(iter(refused.values()))
    options = {"seed": seed, "time_budget": time_budget, "effort": effort, "beam_width": beam_width}
    search = Search(searched, **options, progress=progress, clock=clock)
    search.step, search.started = policy, began
    refused = refused if case.cluster.types else search.facts.unplaceable
    if refused and not allow_unplaceable:
        raise next(iter(refused.values()))
    windows, finished = _search(search, policy, window, seed, effort)
    seconds = search.seconds
    search.report(1.0)
    made = Placement(windows[-1].placement.groups if windows else search.best)
    return Plan(
        placement=made,
        result=search.evaluator.simulate(made) if short is None else simulate(made, case),
        planning_seconds=seconds,
        policy=policy,
        finished=finished,
        history=tuple(search.history),
        unplaceable=refused,
        windows=tuple(windows),
        sample=None if short is None else short.sample(made),
    )


def _search(
    search: Search, policy: str, window: float | None, seed: int, effort: int | None
) -> tuple[list[Window], bool]:
    """Run the policy; clockwork++'s windows, and False when time or an interrupt ended it."""
    windows: list[Window] = []
    try:
        if policy in WINDOWED:
            for served in WINDOWED[policy](search, WINDOW if window is None else window):
                windows.append(served)
        elif search.case.cluster.types:
            search_types(search, policy, seed, effort)
        else:
            policy_named(policy)(search)
    except (TimeIsUp, KeyboardInterrupt):
        return windows, False
    return windows, True


def _check(case: Case, policy: str, time_budget: float | None, effort: int | None) -> None:
    if policy not in WINDOWED:
        policy_named(policy)
    if time_budget is not None and not 0 < time_budget < float("inf"):
        raise InvalidParameter("time_budget", f"{time_budget} s", "give seconds above 0, or leave it out")
    if effort is not None and effort < 1:
        raise InvalidParameter("effort", f"{effort} simulated requests", "give 1 or more, or leave it out")
    if policy in WINDOWED and case.cluster.types:
        raise InvalidParameter("policy", f"{policy} knows one type of devices", "use another, e.g. auto")
    if case.cluster.types and case.drafts:
        raise InvalidParameter("devices", "of several types with draft blocks", "give profiles tokens_per_pass instead")
    if policy in WINDOWED and any(model.weight != 1 or model.floor for model in case.models):
        raise InvalidParameter("policy", f"{policy} knows no weights and floors", "use another, e.g. auto")
    if not case.workload.num_requests:
        raise InvalidParameter("arrivals", "there are none", "give a workload with requests")


def _check_beam(policy: str, width: int) -> None:
    if width < 1:
        raise InvalidParameter("beam_width", f"{width}", "give 1 or more selections")
    if width > 1 and policy not in BEAMS:
        raise InvalidParameter("beam_width", f"{policy} has no beam", f"leave it out, or use {' or '.join(BEAMS)}")


def _compile(case: Case) -> None:
    """Load the compiled simulator, or compile it: that is no part of planning."""
    first = Workload(case.workload.times[:1], case.workload.models[:1])
    if case.is_generated:
        TokenEvaluator(case, first).lone_seconds(0, next(iter(case.profile_of(0).entries)))
    else:
        Evaluator(case, first).simulate(Placement())
