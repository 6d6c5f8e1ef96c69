"""Planning anew when traffic has drifted: what an operator can do, beside Clockwork++, which knows each window before.

Every window is served from a placement that was made on arrivals before it. It is replaced only when the last window
differs from those it was made for by more than chance, and only where the new one would have served the last window
better. Windows without requests are passed over.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from paceline.placement.case import Case
from paceline.placement.placement import Placement
from paceline.placement.search.baselines import WINDOW, Window, stretches
from paceline.placement.search.pools import one_pool
from paceline.placement.search.search import Search
from paceline.placement.simulator import simulate
from paceline.placement.workload import Workload

SURPRISE = 4.0
"""Standard deviations by which a window's requests must differ from what was planned for."""
OVERDISPERSION = 4.0
"""Variance of a window's count over its mean, at least: arrivals are burstier than Poisson's."""


def replan(search: Search, window: float = WINDOW) -> Iterator[Window]:
    """Serve window after window, planned on the past only; the first window's placement is made on the first window.

    Models change places in no time, as with Clockwork++; how often they do is in the windows' placements.

    Args:
        search: of the whole case; its clock limits the windows' searches.
        window: seconds.

    Raises:
        InvalidParameter: see `baselines.stretches`.
    """
    case, parts = search.case, stretches(search.case.workload, window)
    made_for = past = parts[0][2]
    placement = _placed(case, past)
    for number, (start, end, part) in enumerate(parts, 1):
        search.check_time()
        if drifted(made_for, past, window, len(case.models)):
            candidate = _placed(case, past)
            if _served(case, past, candidate) > _served(case, past, placement):
                placement, made_for = candidate, past
        yield _window(case, part, placement, start, end)
        past = part
        search.report(number / len(parts))


def drifted(planned: Workload, seen: Workload, window: float, num_models: int) -> bool:
    """Whether some model's requests, or all together, differ by more than chance from the window planned for."""
    before, after = planned.counts(num_models).astype(float), seen.counts(num_models).astype(float)
    before, after = np.append(before, before.sum()), np.append(after, after.sum())
    deviation = np.sqrt(OVERDISPERSION * np.maximum(before + after, 1.0))
    return bool((np.abs(after - before) > SURPRISE * deviation).any())


def _placed(case: Case, workload: Workload) -> Placement:
    search = Search(replace(case, workload=workload))
    one_pool(search)
    return Placement(search.best)


def _served(case: Case, workload: Workload, placement: Placement) -> int:
    result = simulate(placement, case, workload)
    return result.num_requests - result.num_rejected


def _window(case: Case, part: Workload, placement: Placement, start: float, end: float) -> Window:
    result = simulate(placement, case, part)
    served = result.num_requests - result.num_rejected
    return Window(start, end, placement, result.num_requests, served, served * result.mean_latency_served)
