"""Windows of a long trace that stand for all of it while a search compares placements, and how far off they may be.

Whole windows, not single requests: bursts and queues are what placements differ in. Not for the final figures: the
planner plays the placement it found against every request.
"""

from dataclasses import dataclass

import numpy as np

from paceline.placement.case import Case
from paceline.placement.model import NO_SLO
from paceline.placement.placement import Placement
from paceline.placement.simulator import simulate
from paceline.placement.simulator.token_evaluator import EFFORT
from paceline.placement.workload import Workload

MOST_WINDOWS, FEWEST_WINDOWS = 32, 4
LONG_ENOUGH = 20
"""Times the longest deadline that a window must last: each begins with empty queues."""
MOST_REQUESTS = 2_000_000
"""Requests that a search looks at unless it has little time."""

FEWEST_REQUESTS = 200_000
REQUESTS_PER_SECOND = 100_000
"""With a time budget, a search looks at this number of requests for each of its seconds."""


@dataclass(frozen=True)
class Sample:
    """What a search looked at.

    Attributes:
        num_requests: in its windows.
        slo_attainment: of the placement found, on these.
        standard_error: of that, as an estimate for the whole trace, from how its windows differ.
    """

    num_requests: int
    slo_attainment: float
    standard_error: float


@dataclass(frozen=True)
class Windows:
    """A shorter case.

    Attributes:
        case: with the windows' arrivals one after the other, far enough apart for queues to empty.
        edges: int64 [windows + 1], first request of each window.
    """

    case: Case
    edges: np.ndarray

    def sample(self, placement: Placement) -> Sample:
        """How `placement` fares on the windows, and how sure that is for the trace they are from."""
        result = simulate(placement, self.case, keep_latencies=True)
        assert result.routes is not None
        served = np.add.reduceat(np.append(result.routes >= 0, False), self.edges[:-1], dtype=np.int64)
        counts = np.diff(self.edges)
        share = served.sum() / counts.sum()
        spread = np.sqrt(((served - share * counts) ** 2).sum() * len(counts) / (len(counts) - 1))
        return Sample(int(counts.sum()), float(share), float(spread / counts.sum()))


def most_requests(time_budget: float | None) -> int:
    """Requests that a search of that many seconds should look at."""
    if time_budget is None:
        return MOST_REQUESTS
    return int(min(max(FEWEST_REQUESTS, REQUESTS_PER_SECOND * time_budget), MOST_REQUESTS))


def windows_of(case: Case, most: int, seed: int = 0) -> Windows | None:
    """About `most` requests of the case, in windows spread evenly with a random offset each.

    None when the case has no more, or lasts too short a time for windows that are long against its deadlines.
    """
    workload = case.workload
    most = most // EFFORT if case.is_generated else most
    if workload.num_requests <= most:
        return None
    slack = max((model.slo for model in case.models if model.slo < NO_SLO), default=0.0)
    seconds = workload.duration * most / workload.num_requests
    count = MOST_WINDOWS if slack == 0 else min(MOST_WINDOWS, int(seconds / (LONG_ENOUGH * slack)))
    if count < FEWEST_WINDOWS or workload.duration == 0:
        return None
    stride, length = workload.duration / count, seconds / count
    starts = np.arange(count) * stride + np.random.default_rng(seed).random(count) * (stride - length)
    parts = [workload.between(start, start + length) for start in starts]
    shifts = [number * (length + 2 * slack) - start for number, start in enumerate(starts)]
    kept = [(part, shift) for part, shift in zip(parts, shifts, strict=True) if part.num_requests]
    if len(kept) < 2:
        return None
    lengths = [
        None if getattr(workload, name) is None else np.concatenate([getattr(part, name) for part, _ in kept])
        for name in ("prompt_tokens", "output_tokens")
    ]
    times = np.maximum.accumulate(np.concatenate([np.maximum(part.times + shift, 0.0) for part, shift in kept]))
    short = Workload(times, np.concatenate([part.models for part, _ in kept]), *lengths)
    edges = np.cumsum([0, *(part.num_requests for part, _ in kept)])
    return Windows(case.with_workload(short), edges)
