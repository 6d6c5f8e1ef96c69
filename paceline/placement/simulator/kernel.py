"""The controller's rules, compiled: route each request, pass it through its stages, or turn it away.

Numbers in, numbers out; what they mean is arranged by `evaluator.py`. The slow, clear twin is in the tests.
"""

import numpy as np
from numba import njit


@njit(nogil=True)
def run(
    times, models, slos, first_hold, hold_group, hold_latency, num_stages, overhead, max_rejected, served, rejected,
    latencies, routes
):  # fmt: skip
    """Simulate requests in order of arrival; batches of one.

    A *hold* is a model in a group. A request goes to the group that holds its model and whose last stage frees
    earliest (the lowest group on ties), passes its stages first come first served, and finishes `overhead` seconds
    after the last one. If that is later than its deadline it is turned away and occupies nothing.

    Args:
        times, models: float64, int32 [requests]; slos: float32 [models], seconds.
        first_hold: int32 [models + 1]; the holds of model m are first_hold[m] to first_hold[m + 1], by group.
        hold_group: int32 [holds]; hold_latency: float32 [holds, stages], busy seconds.
        num_stages: int32 [groups].
        max_rejected: give up as soon as more requests than this are turned away.
        served, rejected: int64 [holds], counted up here.
        latencies: float64 [requests] or empty; seconds, left as they are where a request was not served.
        routes: int32 [requests] or empty; the hold that served the request.

    Returns:
        The sum of the latencies of served requests, seconds; NaN after giving up.
    """
    num_groups, most_stages = len(num_stages), hold_latency.shape[1]
    clocks = np.zeros((num_groups, most_stages))
    frees = np.zeros(num_groups)
    passed = np.zeros(most_stages)
    total = 0.0
    turned_away = 0
    for i in range(len(times)):
        model = models[i]
        hold, end = first_hold[model], first_hold[model + 1]
        if hold == end:
            continue
        earliest = frees[hold_group[hold]]
        for other in range(hold + 1, end):
            free = frees[hold_group[other]]
            if free < earliest:
                earliest = free
                hold = other
        group = hold_group[hold]
        arrival = times[i]
        clock = arrival
        for k in range(num_stages[group]):
            clock = max(clock, clocks[group, k]) + hold_latency[hold, k]
            passed[k] = clock
        latency = clock + overhead - arrival
        if latency > slos[model]:
            rejected[hold] += 1
            turned_away += 1
            if turned_away > max_rejected:
                return np.nan
            continue
        for k in range(num_stages[group]):
            clocks[group, k] = passed[k]
        frees[group] = clock
        served[hold] += 1
        total += latency
        if len(latencies):
            latencies[i] = latency
            routes[i] = hold
    return total
