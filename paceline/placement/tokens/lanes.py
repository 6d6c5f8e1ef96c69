"""The rule of a pipeline, compiled. The slow, clear twin is in the tests.

A pipeline has as many passes of a model in flight as stages (ORCA, Yu et al. 2022, section 4.2): its requests are in
that many *lanes*, each with passes of its own, one after the other. A pass enters the first stage when its lane's last
one is over and the pass before it, of any lane and model, has left it (`engine/threads/turns.py`); stages keep their
order. A pass alone takes its seconds d; beside others it holds the slowest stage for d over the overlap: the flow shop
with two machines (Johnson 1954), which is exact for two even stages. So no pass holds up those before it.

A request joins the lane with the fewest, as in the engine (`engine/async_llm.py`). Passes are taken one at a time until
a whole cycle of them repeats the last one a little later; then as many cycles as nothing changes in are taken at once.
"""

import numpy as np
from numba import njit

from paceline.models.compiled.kernel import inner
from paceline.placement.tokens.passes import (
    ENDED,
    GATHER,
    LANE,
    MADE,
    MODEL,
    NEARLY,
    RUNS,
    TOTAL,
    admit,
    copy_row,
    go_on,
    pass_seconds,
    purge,
)

FREE, LAST, BUSY, READY = range(4)
"""Columns of a pipeline's state, a row for each model. In the first row: when the first stage is free, when the last
pass leaves, and the seconds of all passes over the number of devices. In each, for each lane: when its last pass is
over; its passes so far; and when it has gathered requests for the first one (`GATHER`)."""


@inner
def num_lanes(state):
    """Lanes of each model that a state has columns for."""
    return (state.shape[1] - READY) // 3


@njit(nogil=True)
def enter(entries, n, state, limits, entry, now):
    """Put `entry` at the end of the lane of its model with the fewest requests, the first of several."""
    m, best, fewest, unfinished = int(entry[MODEL]), 0, n + 1, 0
    for lane in range(int(limits[m, 7])):
        count = left = 0
        for i in range(n):
            if entries[i, MODEL] == m and entries[i, LANE] == lane:
                count, left = count + 1, left + (entries[i, ENDED] == 0)
        if count < fewest:
            best, fewest, unfinished = lane, count, left
    for column in range(len(entry)):  # not a slice, see `copy_row`
        entries[n, column] = entry[column]
    entries[n, LANE] = best
    if unfinished == 0:
        gathered = READY + 2 * num_lanes(state) + best
        state[m, gathered] = now + GATHER if state[m, READY + best] < now else 0.0
        state[m, READY + best] = max(state[m, READY + best], now)


@inner
def advance_lanes(entries, n, until, scale, tables, chunks, state, done, log):
    """Do all passes that begin before `until`; arguments and result as `kernel.advance`."""
    limits, width = tables[4], num_lanes(state)
    before, first = state.copy(), -1
    while True:
        m, lane = _next(entries, n, state)
        if m < 0 or _begins(state, m, lane) >= until:
            left, num_done = purge(entries, n, until, done, 0)  # another name: Numba would take n for 0 in the loop
            return left, state[:, READY : READY + width].max(), num_done
        if first == m * width + lane:
            _skip(entries, n, until, state, before, limits, log)
            _copy(before, state)
        elif first < 0:
            first = m * width + lane
            _copy(before, state)
        share = limits[m, 7]
        changes = admit(entries, n, m, lane, np.ceil(limits[m, 1] / share), limits[m, 3] / share)
        decoding, reading, _ = pass_seconds(entries, n, tables, chunks, m, lane)
        _pass(state, m, lane, scale * decoding, scale * reading, limits)
        changes += go_on(entries, n, m, lane, chunks, limits, 1.0, state[m, READY + lane])
        _write(log, state, m, lane)
        if changes > 0 or reading > 0:
            first = -1


@inner
def _copy(before, state):
    """`before[:] = state`, see `copy_row`."""
    for m in range(len(state)):
        copy_row(before, m, state, m)


@inner
def _next(entries, n, state):
    """Model and lane whose next pass begins first; -1 where nothing is left to do."""
    best, at, when = -1, 0, np.inf
    for i in range(n):
        if entries[i, ENDED] > 0:
            continue
        m, lane = int(entries[i, MODEL]), int(entries[i, LANE])
        ready = _begins(state, m, lane)
        if ready < when or (ready == when and (m < best or (m == best and lane < at))):
            best, at, when = m, lane, ready
    return best, at


@inner
def _begins(state, m, lane):
    """When a lane's next pass has its requests together."""
    return max(state[m, READY + lane], state[m, READY + 2 * num_lanes(state) + lane])


@inner
def _pass(state, m, lane, decoding, reading, limits):
    """Send a pass through the pipeline: when its lane is ready again, and what it leaves for the next."""
    seconds, hold, devices = decoding + reading, decoding / limits[m, 8] + reading / limits[m, 9], limits[:, 7].max()
    start = max(state[m, READY + lane], state[0, FREE])
    state[0, FREE] = start + hold
    state[0, BUSY] += seconds / devices
    state[0, LAST] = max(start + seconds, state[0, LAST] + hold)
    state[m, READY + lane] = state[0, LAST]
    state[m, READY + num_lanes(state) + lane] += 1.0


@inner
def _skip(entries, n, until, state, before, limits, log):
    """Where everything is as it was in `before`, only later: take as many such cycles as nothing changes in."""
    width = num_lanes(state)
    cycle, latest = state[0, FREE] - before[0, FREE], 0.0
    if not cycle > 0 or abs(state[0, LAST] - before[0, LAST] - cycle) > NEARLY * max(cycle, 1.0):
        return  # a pass shorter than what a float can add to the time
    for m in range(len(limits)):
        for lane in range(int(limits[m, 7])):
            if state[m, READY + width + lane] > before[m, READY + width + lane]:
                if abs(state[m, READY + lane] - before[m, READY + lane] - cycle) > NEARLY * max(cycle, 1.0):
                    return
                latest = max(latest, state[m, READY + lane])
    times = np.floor((until - latest) / cycle)
    for i in range(n):
        if entries[i, ENDED] > 0:
            continue
        m, at = int(entries[i, MODEL]), READY + width + int(entries[i, LANE])
        if state[m, at] == before[m, at]:
            return  # its lane is in the middle of a longer pass
        if entries[i, RUNS] == 0:
            continue
        left = np.ceil((entries[i, TOTAL] - entries[i, MADE]) / limits[m, 4] - NEARLY)
        times = min(times, np.floor((left - 1) / (state[m, at] - before[m, at])))
    if not 0 < times < np.inf:
        return
    for i in range(n):
        if entries[i, ENDED] == 0 and entries[i, RUNS] == 1:
            m, at = int(entries[i, MODEL]), READY + width + int(entries[i, LANE])
            entries[i, MADE] += times * (state[m, at] - before[m, at]) * limits[m, 4]
    for column in (FREE, LAST):
        state[0, column] += times * cycle
    state[0, BUSY] += times * (state[0, BUSY] - before[0, BUSY])
    for m in range(len(limits)):
        for lane in range(int(limits[m, 7])):
            passes = state[m, READY + width + lane] - before[m, READY + width + lane]
            if passes > 0:
                state[m, READY + lane] += times * cycle
                state[m, READY + width + lane] += times * passes
                _write(log, state, m, lane)


@inner
def _write(log, state, m, lane):
    """Note a lane's passes so far, and when the last was over."""
    if len(log) > 0:
        width = num_lanes(state)
        at = 1 + int(log[0, 0]) % (len(log) - 1)
        log[at, 0], log[at, 1] = state[m, READY + lane], state[m, READY + width + lane]
        log[at, 2] = m * width + lane
        log[0, 0] += 1.0
