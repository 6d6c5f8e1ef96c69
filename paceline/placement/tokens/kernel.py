"""The rule of a group that generates for many requests at once, compiled: what is done by when, and what would become
of a request that joins.

A group without stages does rounds (`rounds.py`), a pipeline has passes in flight (`lanes.py`). Numbers in, numbers out;
`group.py` says what they mean.
"""

import numpy as np
from numba import njit

from paceline.models.compiled.kernel import inner
from paceline.placement.tokens.lanes import advance_lanes, enter
from paceline.placement.tokens.passes import (
    BY,
    ENDED,
    EXPECTED,
    FIRST,
    FIRST_BY,
    MADE,
    MODEL,
    NUMBER,
    PACE,
    PROMPT,
    TOTAL,
    copy_row,
)
from paceline.placement.tokens.rounds import advance_rounds


@njit(nogil=True)
def advance(entries, n, clock, until, scale, tables, chunks, state, done, log):
    """Do all that begins before `until`; what ends after it keeps its entries until it has ended.

    Args:
        entries: float64 [room, passes.NUM_COLUMNS], the first `n` of them in order of arrival; changed in place.
        clock: when the last round ended; nothing to a pipeline, which has a clock for each lane.
        scale: seconds of this group over those of `tables`.
        tables: the fields of `GroupTables`.
        chunks: float64 [room], scratch.
        state: float64 [models, columns of `lanes.py`], a pipeline's; changed in place.
        done: float64 [room, NUM_COLUMNS], filled with those that ended by `until`.
        log: float64 [1 + length, 3], or [0, 3] for none: a ring of (clock, rounds or passes by then, lane), after a row
            that says how many were entered, and the rounds in all.

    Returns:
        Entries left, the clock, entries in `done`.
    """
    if tables[4][:, 7].max() > 1:
        return advance_lanes(entries, n, until, scale, tables, chunks, state, done, log)
    return advance_rounds(entries, n, clock, until, scale, tables, chunks, done, log)


@inner
def foresee(entries, n, clock, scale, tables, chunks, state, copies, done):
    """What becomes of all entries if nobody joins: fills `done`, in any order, each with its first token and its end.

    Answers are taken to be as long as expected, and a token longer than what is there. Returns how many are late.
    """
    for i in range(n):
        copy_row(copies, i, entries, i)
        copies[i, ENDED] = 0.0
        per_pass = tables[4][int(entries[i, MODEL]), 4]
        copies[i, TOTAL] = max(entries[i, EXPECTED], entries[i, MADE] + per_pass)
    _, _, num_done = advance(copies, n, clock, np.inf, scale, tables, chunks, state.copy(), done, np.empty((0, 3)))
    late = 0
    for i in range(num_done):
        late += is_late(done[i])
    return late


@inner
def is_late(entry):
    """Whether an entry that has ended missed one of its deadlines."""
    pace = entry[PACE] * max(entry[MADE] - 1.0, 1.0)
    return entry[ENDED] > entry[BY] or entry[FIRST] > entry[FIRST_BY] or entry[ENDED] - entry[FIRST] > pace


@njit(nogil=True)
def consider(entries, n, clock, now, scale, tables, chunks, state, copies, done, entry):
    """Let `entry` join on trial: (when it would end, its first token, is it late, how many others it makes late).

    Late is also whose keys and values find no room even alone: no engine runs it.
    """
    begin = max(clock, now) if n == 0 else clock
    with_it = state.copy()
    enter(entries, n, with_it, tables[4], entry, now)
    late = foresee(entries, n + 1, begin, scale, tables, chunks, with_it, copies, done)
    end = first = 0.0
    own = False
    for i in range(n + 1):
        if done[i, NUMBER] == entry[NUMBER]:
            end, first, own = done[i, ENDED], done[i, FIRST], is_late(done[i])
    others = late - own
    own = own or entry[PROMPT] + entry[EXPECTED] > tables[4][int(entry[MODEL]), 3]
    if others > 0:
        others -= foresee(entries, n, begin, scale, tables, chunks, state, copies, done)
    return end, first, own, max(others, 0)
