"""The rule of a group without stages, compiled. The slow, clear twin is in the tests.

A group does rounds. In a round every model that has running requests does one pass: each decoding request gets its
token(s), and what the token budget leaves is read from prompts, oldest first; the passes of several models follow each
other. At the start of a round waiting requests take seats. Rounds that are all alike are taken in one go: the loop goes
from event to event. Not for pipelines (`lanes.py`).
"""

import numpy as np

from paceline.models.compiled.kernel import inner
from paceline.placement.tokens.passes import GATHER, RUNS, admit, go_on, pass_seconds, purge


@inner
def advance_rounds(entries, n, clock, until, scale, tables, chunks, done, log):
    """Do all rounds that start before `until`; arguments and result as `kernel.advance`."""
    num_done, limits = 0, tables[4]
    lane = np.int64(0)  # as lanes are numbered: for a constant, all would be compiled once more
    while True:
        if clock <= until:
            n, num_done = purge(entries, n, until, done, num_done)
        gathers = 0.0 if (entries[:n, RUNS] == 1).any() else GATHER
        if n == 0 or clock + gathers >= until:
            return n, clock, num_done
        for m in range(len(limits)):
            admit(entries, n, m, lane, limits[m, 1], limits[m, 3])
        seconds, reads, most = 0.0, False, np.inf
        for m in range(len(limits)):
            decoding, reading, ends = pass_seconds(entries, n, tables, chunks, m, lane)
            seconds, reads, most = seconds + decoding + reading, reads or reading > 0.0, min(most, ends)
        seconds, rounds = scale * seconds, 1.0
        if not reads:
            rounds = most = max(most, 1.0)
            if until < np.inf:
                rounds = min(most, max(1.0, np.ceil((until - clock) / seconds)))
        clock += rounds * seconds
        if len(log) > 0:
            log[0, 1] += rounds
            at = 1 + int(log[0, 0]) % (len(log) - 1)
            log[at, 0], log[at, 1] = clock, log[0, 1]
            log[0, 0] += 1.0
        for m in range(len(limits)):
            go_on(entries, n, m, lane, chunks, limits, rounds, clock)
