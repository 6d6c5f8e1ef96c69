"""What people do without a search: fixed groups filled in turn, equal shares, and Clockwork++."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.placement import Placement
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.free_memory import Rooms
from paceline.placement.search.partitions import remainder
from paceline.placement.search.replication import replicate, single_devices
from paceline.placement.search.search import Groups, Search, empty_groups
from paceline.placement.workload import Workload


def fixed_groups(search: Search, pipeline: int) -> Groups:
    """Empty groups of one pipeline degree, the devices left over in smaller ones."""
    split = ParallelConfig(1, pipeline)
    if split not in search.facts.splits:
        known = ", ".join(str(s.pipeline) for s in search.facts.splits if s.tensor == 1)
        problem = f"no model can be served from a pipeline of {pipeline} on this cluster"
        raise InvalidParameter("policy", problem, f"pipelines that can serve: {known or 'none'}")
    count, left = divmod(search.facts.num_devices, pipeline)
    return empty_groups((split,) * count + remainder(search.facts, left))


def greedy_in_fixed_groups(search: Search, pipeline: int) -> Groups:
    """Groups of one size, filled by the fast greedy selection."""
    return fast_greedy(search, fixed_groups(search, pipeline))


def round_robin(search: Search, pipeline: int = 4) -> Groups:
    """Groups of one size (the largest that can serve, up to `pipeline`); models dealt out in turn while they fit."""
    sizes = [s.pipeline for s in search.facts.splits if s.tensor == 1 and s.pipeline <= pipeline]
    return _deal(search, fixed_groups(search, max(sizes, default=pipeline)))


def equal_replicas(search: Search) -> Groups:
    """Single devices, models dealt out in turn: every model gets as many replicas as the others, or one fewer."""
    return _deal(search, single_devices(search))


def _deal(search: Search, groups: Groups) -> Groups:
    """Deal the models out in turn, each to the next group that has room, until one round places nothing."""
    rooms, turn, left = Rooms(search.facts, groups), 0, list(range(search.facts.num_models))
    while left:
        dealt = []
        for model in left:
            g = rooms.next(model, turn)
            if g is not None:
                rooms.add(g, model)
                dealt.append(model)
                turn = (g + 1) % len(groups)
        left = dealt
    search.scored(rooms.groups)
    return rooms.groups


WINDOW = 60.0
"""Seconds of a window where none are given."""

MAX_WINDOWS = 10_000
"""Windows of a trace that are planned one by one."""


@dataclass(frozen=True)
class Window:
    """A stretch of the trace and what it was served from."""

    start: float
    end: float
    placement: Placement
    num_requests: int
    num_served: int
    latency_sum: float


def clockwork(search: Search, window: float = WINDOW) -> Iterator[Window]:
    """Clockwork++: selective replication planned anew for every window, on that window's own arrivals, at no cost.

    Models change places in no time and requests under way finish undisturbed, so this is an upper bound on what
    swapping models between single devices could reach, not a plan that can be run.

    Args:
        search: of the whole case; its clock limits the windows' searches.
        window: seconds.

    Raises:
        InvalidParameter: see `stretches`.
    """
    parts = stretches(search.case.workload, window)
    for number, (start, end, part) in enumerate(parts, 1):
        search.check_time()
        yield _plan_window(replace(search.case, workload=part), start, end)
        search.report(number / len(parts))


def stretches(workload: Workload, window: float) -> list[tuple[float, float, Workload]]:
    """Start, end and requests of each `window` of seconds that has some; every request is in exactly one.

    Raises:
        InvalidParameter: no seconds, or more than `MAX_WINDOWS` windows, empty ones included.
    """
    if not 0 < window < float("inf"):
        raise InvalidParameter("window", f"{window} s", "give seconds above 0")
    if workload.duration / window > MAX_WINDOWS:
        problem = f"{window:g} s make more than {MAX_WINDOWS} windows of {workload.duration:g} s"
        raise InvalidParameter("window", problem, f"give {workload.duration / MAX_WINDOWS:.3g} s or more")
    edges = np.arange(int(workload.duration // window) + 3) * window
    held = np.diff(np.searchsorted(workload.times, edges))
    borders = [(float(edges[i]), float(edges[i + 1])) for i in np.flatnonzero(held)]
    return [(start, end, workload.between(start, end)) for start, end in borders]


def _plan_window(case: Case, start: float, end: float) -> Window:
    search = Search(case)
    replicate(search)
    score = search.best_score
    latency_sum = -score.negative_mean_latency * score.served
    return Window(start, end, Placement(search.best), case.workload.num_requests, int(score.served), latency_sum)
