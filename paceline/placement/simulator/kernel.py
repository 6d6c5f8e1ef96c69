"""The controller's rules, compiled: route each request, pass it through its stages, or turn it away.

Numbers in, numbers out; what they mean is arranged by `evaluator.py`. The slow, clear twin is in the tests.
"""

import numpy as np
from numba import njit


@njit(nogil=True)
def run(
    times, models, slos, first_replica, replica_group, replica_latency, num_stages, overhead, max_rejected, served,
    rejected, latencies, routes
):  # fmt: skip
    """Simulate requests in order of arrival; batches of one.

    A *replica* is a model in a group. A request goes to the group that holds its model and whose last stage frees
    earliest (the lowest group on ties), passes its stages first come first served, and finishes `overhead` seconds
    after the last one. If that is later than its deadline it is turned away and occupies nothing.

    Args:
        times, models: float64, int32 [requests]; slos: float32 [models], seconds.
        first_replica: int32 [models + 1]; those of model m are first_replica[m] to first_replica[m + 1], by group.
        replica_group: int32 [replicas]; replica_latency: float32 [replicas, stages], busy seconds.
        num_stages: int32 [groups].
        max_rejected: give up as soon as more requests than this are turned away.
        served, rejected: int64 [replicas], counted up here.
        latencies: float64 [requests] or empty; seconds, left as they are where a request was not served.
        routes: int32 [requests] or empty; the replica that served the request.

    Returns:
        The sum of the latencies of served requests, seconds; NaN after giving up.
    """
    num_groups, most_stages = len(num_stages), replica_latency.shape[1]
    clocks = np.zeros((num_groups, most_stages))
    frees = np.zeros(num_groups)
    passed = np.zeros(most_stages)
    total = 0.0
    turned_away = 0
    for i in range(len(times)):
        model = models[i]
        replica, end = first_replica[model], first_replica[model + 1]
        if replica == end:
            continue
        earliest = frees[replica_group[replica]]
        for other in range(replica + 1, end):
            free = frees[replica_group[other]]
            if free < earliest:
                earliest = free
                replica = other
        group = replica_group[replica]
        arrival = times[i]
        clock = arrival
        for k in range(num_stages[group]):
            clock = max(clock, clocks[group, k]) + replica_latency[replica, k]
            passed[k] = clock
        latency = clock + overhead - arrival
        if latency > slos[model]:
            rejected[replica] += 1
            turned_away += 1
            if turned_away > max_rejected:
                return np.nan
            continue
        for k in range(num_stages[group]):
            clocks[group, k] = passed[k]
        frees[group] = clock
        served[replica] += 1
        total += latency
        if len(latencies):
            latencies[i] = latency
        if len(routes):
            routes[i] = replica
    return total
