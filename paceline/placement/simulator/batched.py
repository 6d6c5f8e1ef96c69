"""The controller's rules with batches, compiled: a stage that frees takes as many waiting requests as deadlines allow.

Numbers in, numbers out. Used only when batch sizes above 1 are asked for; with sizes (1,) it turns away the same
requests as `kernel.py` wherever a model has one group.
"""

import numpy as np
from numba import njit

_NOBODY = -1


@njit(nogil=True)
def run_batched(
    times,
    models,
    slos,
    first_replica,
    replica_group,
    replica_latency,
    sizes,
    num_stages,
    overhead,
    served,
    rejected,
    latencies,
    routes,
):
    """Simulate requests in order of arrival; batches hold one model.

    A request joins the queue of the group that holds its model and has the least work before it: until its last stage
    frees, and the slowest stage of each request that waits. When the group's first stage frees, the oldest request
    and those of its model after it start together, in the largest profiled size that they fill and that keeps the
    oldest one's deadline. If no size keeps it, that request is turned away.

    Args as for `kernel.run`, but replica_latency: float32 [replicas, sizes, stages], infinite where not profiled;
    sizes: int32, rising from 1; latencies and routes: [requests] each.

    Returns:
        float64 [groups, stages], busy seconds.
    """
    num_groups, most_stages = len(num_stages), replica_latency.shape[2]
    clocks, busy = np.zeros((num_groups, most_stages)), np.zeros((num_groups, most_stages))
    queued = np.zeros(num_groups)
    heads, tails = np.full(num_groups, _NOBODY), np.full(num_groups, _NOBODY)
    following = np.full(len(times), _NOBODY)
    state = (clocks, busy, queued, heads, tails, following)
    cost = (slos, replica_latency, sizes, num_stages, overhead)
    for i in range(len(times)):
        first, end = first_replica[models[i]], first_replica[models[i] + 1]
        if first == end:
            continue
        replica, least = first, np.inf
        for other in range(first, end):
            group = replica_group[other]
            _advance(group, times[i], times, models, cost, state, served, rejected, latencies, routes)
            work = max(clocks[group, num_stages[group] - 1] - times[i], 0.0) + queued[group]
            if work < least:
                replica, least = other, work
        group = replica_group[replica]
        routes[i] = replica
        queued[group] += replica_latency[replica, 0, : num_stages[group]].max()
        _join(group, i, heads, tails, following)
    for group in range(num_groups):
        _advance(group, np.inf, times, models, cost, state, served, rejected, latencies, routes)
    return busy


@njit(nogil=True)
def _advance(group, until, times, models, cost, state, served, rejected, latencies, routes):
    """Start all batches of `group` that start before `until`."""
    slos, replica_latency, sizes, num_stages, overhead = cost
    clocks, busy, queued, heads, tails, following = state
    while heads[group] != _NOBODY:
        oldest = heads[group]
        start = max(clocks[group, 0], times[oldest])
        if start >= until:
            return
        model, replica = models[oldest], routes[oldest]
        waiting = _count(oldest, model, start, sizes[-1], times, models, following)
        size = len(sizes) - 1
        while size >= 0:
            if sizes[size] <= waiting:
                end = _leaves(start, clocks[group], replica_latency[replica, size], num_stages[group])
                if end + overhead - times[oldest] <= slos[model]:
                    break
            size -= 1
        seconds = replica_latency[replica, 0, : num_stages[group]].max()
        if size < 0:
            rejected[replica] += 1
            routes[oldest] = _NOBODY
            _leave(group, model, 1, times, models, heads, tails, following, latencies, np.nan)
            queued[group] -= seconds
            continue
        clock = start
        for k in range(num_stages[group]):
            clock = max(clock, clocks[group, k]) + replica_latency[replica, size, k]
            clocks[group, k] = clock
            busy[group, k] += replica_latency[replica, size, k]
        served[replica] += sizes[size]
        queued[group] -= sizes[size] * seconds
        _leave(group, model, sizes[size], times, models, heads, tails, following, latencies, clock + overhead)


@njit(nogil=True)
def _leaves(start, clocks, latency, num_stages):
    """When a batch that could start at `start` leaves the last stage; each stage takes it once it is free."""
    for k in range(num_stages):
        start = max(start, clocks[k]) + latency[k]
    return start


@njit(nogil=True)
def _join(group, i, heads, tails, following):
    """Put request `i` at the end of the queue."""
    if heads[group] == _NOBODY:
        heads[group] = i
    else:
        following[tails[group]] = i
    tails[group] = i


@njit(nogil=True)
def _count(oldest, model, start, most, times, models, following):
    """Requests for `model` that wait at `start`, at most `most`."""
    count, i = 0, oldest
    while i != _NOBODY and count < most and times[i] <= start:
        if models[i] == model:
            count += 1
        i = following[i]
    return count


@njit(nogil=True)
def _leave(group, model, count, times, models, heads, tails, following, latencies, finish):
    """Take the `count` oldest requests for `model` out of the queue; they finish at `finish` (NaN: turned away)."""
    before, i = _NOBODY, heads[group]
    while count > 0:
        after = following[i]
        if models[i] == model:
            latencies[i] = finish - times[i]
            count -= 1
            if before == _NOBODY:
                heads[group] = after
            else:
                following[before] = after
            if after == _NOBODY:
                tails[group] = before
        else:
            before = i
        i = after
