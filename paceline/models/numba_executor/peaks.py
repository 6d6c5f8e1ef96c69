"""The argmax of each logit row, computed by all threads while the logits are in their caches.

A greedy request needs nothing else, and reading a row again later would read it from memory. Not for sampling
(`sampling/`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np

from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.team import barrier, take

UNKNOWN = -1
"""Replaces a row's peak if one of its logits is NaN or infinite."""
_LOWEST = np.float32(-np.inf)
_ZERO = np.float32(0)


@kernel
def largest(x, first, end):
    """Place in x of the largest of x[first:end], the first of them on ties; `UNKNOWN` where one is not finite."""
    whole = first + (end - first) // v.LANES * v.LANES
    highest, odd = v.splat(_LOWEST), v.splat(_ZERO)
    for i in range(first, whole, v.LANES):
        values = v.load(x, i)
        highest = v.maximum(values, highest)
        odd = v.add(odd, v.sub(values, values))  # 0, or NaN from the first number on that is not finite
    top, oddness = v.max_lanes(highest), v.sum_lanes(odd)
    for i in range(whole, end):
        top = max(top, x[i])
        oddness += x[i] - x[i]
    if oddness != _ZERO:
        return UNKNOWN
    place = first
    while x[place] != top:
        place += 1
    return place


@kernel
def find_peaks(counters, phase, met, thread, num_threads, logits, num_rows, width, size, peaks):
    """peaks[row * num_threads] = the first place of the largest of `size` logits of each row, or `UNKNOWN`.

    Args:
        counters, phase, met: see `team.py`; the meetings so far return, two more.
        logits: [num_rows * width].
        peaks: [num_rows * num_threads] int64; its other places are scratch.
    """
    part = -(-size // (num_threads * v.LANES)) * v.LANES
    item = take(counters, phase, 1, num_rows * num_threads)
    while item >= 0:
        row, number = divmod(item, num_threads)
        first = row * width + min(number * part, size)
        end = row * width + min((number + 1) * part, size)
        peaks[item] = largest(logits, first, end) if first < end else first
        item = take(counters, phase, 1, num_rows * num_threads)
    met = barrier(counters, met, num_threads)
    if thread == 0:
        for row in range(num_rows):
            best = peaks[row * num_threads]
            for number in range(1, min(num_threads, -(-size // part))):
                other = peaks[row * num_threads + number]
                if other == UNKNOWN or (best != UNKNOWN and logits[other] > logits[best]):
                    best = other
                if best == UNKNOWN:
                    break
            peaks[row * num_threads] = best - row * width if best != UNKNOWN else best
    return barrier(counters, met, num_threads)
