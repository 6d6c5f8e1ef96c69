"""The rule of a group that generates for many requests at once, compiled. The slow, clear twin is in the tests.

A group does rounds. In a round every model that has running requests does one pass: each decoding request gets its
token(s), and what the token budget leaves is read from prompts, oldest first; the passes of several models follow each
other. At the start of a round waiting requests take seats, oldest first, while the model has seats and room for their
keys and values. Rounds that are all alike are taken in one go: the loop goes from event to event.

A pipeline has as many passes of a model in flight as stages (ORCA, section 4.2): its requests are in that many *lanes*,
each with passes of its own. A round then takes the longest pass, or what all passes take of one stage, or what those of
one model take beside each other: its slowest stage is the same for all of them. They enter an empty pipeline one after
the other: in a model's first round the others end after the longest, each by what it takes of the slowest stage.

An *entry* is a request in a group, a row of a float64 array. Numbers in, numbers out; `group.py` says what they mean.
"""

import numpy as np
from numba import njit

MODEL, PROMPT, READ, MADE, TOTAL, EXPECTED, RUNS, FIRST, ENDED, BY, FIRST_BY, PACE, NUMBER, LANE, STARTS = range(15)
"""Columns: model of the group; tokens of the prompt, and of it those read; tokens made, those that there will be, and
those that are expected; 1 once it has a seat; when its first token and its end came (0 before); seconds of the clock by
which its end and its first token are due; seconds per further token that it may take; its number; its lane; 1 when
nothing of its model was there before it."""
NUM_COLUMNS = 15
NEARLY = 1e-9


@njit(nogil=True)
def lookup(rows, contexts, table, num_rows, context):
    """Seconds at (rows, context), on straight lines; constant below the table, on its last line beyond it."""
    c, c_share = _place(contexts, context)
    r, r_share = _place(rows, num_rows)
    low = table[c, r]
    if r_share != 0.0:
        low += r_share * (table[c, r + 1] - low)
    if c_share == 0.0:
        return low
    high = table[c + 1, r]
    if r_share != 0.0:
        high += r_share * (table[c + 1, r + 1] - high)
    return low + c_share * max(high - low, 0.0)


@njit(nogil=True)
def _place(grid, value):
    """Left neighbour in a rising grid that ends in infinities, and the share of the way to the next point."""
    last = len(grid) - 1
    while last > 0 and grid[last] == np.inf:
        last -= 1
    if value <= grid[0] or last == 0:
        return 0, 0.0
    left = 0
    while left + 1 < last and grid[left + 1] <= value:
        left += 1
    return left, (value - grid[left]) / (grid[left + 1] - grid[left])


@njit(nogil=True)
def _admit(entries, n, limits):
    """Give seats to those that wait, oldest first in each model; one that finds no room holds up those after it."""
    for m in range(len(limits)):
        seats, room, running = limits[m, 1], limits[m, 3], 0
        for i in range(n):
            if entries[i, MODEL] == m and entries[i, RUNS] == 1:
                seats, running = seats - 1, running + 1
                room -= entries[i, PROMPT] + entries[i, EXPECTED]
        for i in range(n):
            if entries[i, MODEL] != m or entries[i, RUNS] == 1:
                continue
            need = entries[i, PROMPT] + entries[i, EXPECTED]
            if running > 0 and (seats < 1 or room < need):
                break
            entries[i, LANE] = _emptiest(entries, n, m, limits[m, 7])
            entries[i, RUNS] = 1
            seats, room, running = seats - 1, room - need, running + 1


@njit(nogil=True)
def _emptiest(entries, n, m, lanes):
    """The lane of model `m` with the fewest running requests, the first of several."""
    best, fewest = 0, n + 1
    for lane in range(int(lanes)):
        count = 0
        for i in range(n):
            if entries[i, MODEL] == m and entries[i, RUNS] == 1 and entries[i, LANE] == lane:
                count += 1
        if count < fewest:
            best, fewest = lane, count
    return best


@njit(nogil=True)
def _round(entries, n, tables, chunks):
    """Seconds of a round as things stand, whether it reads prompts, and after how many such rounds a request ends.

    `chunks` is filled in: rows that each entry reads in this round.
    """
    total, longest, reads, most = 0.0, 0.0, False, np.inf
    limits, stages = tables[4], 1.0
    for m in range(len(limits)):
        stages, own, most_own, is_first = max(stages, limits[m, 7]), 0.0, 0.0, False
        for i in range(n):
            if entries[i, MODEL] == m:
                chunks[i] = 0.0
                is_first |= entries[i, STARTS] == 1 and entries[i, READ] == 0.0
        for lane in range(int(limits[m, 7])):
            decoding, reading, ends = _pass(entries, n, tables, chunks, m, lane)
            total, own = total + decoding + reading, own + decoding / limits[m, 8] + reading / limits[m, 9]
            most_own = max(most_own, decoding + reading)
            reads, most = reads or reading > 0.0, min(most, ends)
        if is_first:
            own += most_own - most_own / limits[m, 9]
        longest = max(longest, most_own, own)
    return max(longest, total / stages), reads, max(most, 1.0)


@njit(nogil=True)
def _pass(entries, n, tables, chunks, m, lane):
    """Seconds of a lane's pass for decodes and for prompts, 0 without; after how many passes one of its requests ends.

    What a pass costs besides belongs to the decodes where there are any.
    """
    rows, contexts, seconds, segments, limits = tables
    decodes, context, requests, most = 0, 0.0, 0, np.inf
    for i in range(n):
        if entries[i, MODEL] != m or entries[i, LANE] != lane or entries[i, RUNS] == 0:
            continue
        if entries[i, READ] >= entries[i, PROMPT]:
            decodes += 1
            context += entries[i, PROMPT] + 0.5 * entries[i, EXPECTED]
            most = min(most, np.ceil((entries[i, TOTAL] - entries[i, MADE]) / limits[m, 4] - NEARLY))
    decode_rows = decodes * limits[m, 5]
    left, prompt_rows = max(limits[m, 2] - decode_rows, 1.0), 0.0
    for i in range(n):
        if entries[i, MODEL] != m or entries[i, LANE] != lane or entries[i, RUNS] == 0:
            continue
        if entries[i, READ] >= entries[i, PROMPT] or left <= 0:
            continue
        chunks[i] = min(left, entries[i, PROMPT] - entries[i, READ])
        left -= chunks[i]
        prompt_rows += chunks[i]
        requests += 1
    requests += decodes
    if requests == 0:
        return 0.0, 0.0, most
    context = context / decodes if decodes > 0 else 0.0
    besides = (requests - 1) * lookup(rows[m], contexts[m], segments[m].reshape(-1, 1), 0.0, context) + limits[m, 0]
    if decodes == 0:
        return 0.0, lookup(rows[m], contexts[m], seconds[m, 1], prompt_rows, 0.0) + besides, most
    decoding = lookup(rows[m], contexts[m], seconds[m, 0], decode_rows, context) + limits[m, 6] + besides
    if prompt_rows == 0.0:
        return decoding, 0.0, most
    reading = lookup(rows[m], contexts[m], seconds[m, 1], decode_rows + prompt_rows, 0.0)
    reading -= lookup(rows[m], contexts[m], seconds[m, 1], decode_rows, 0.0)
    return decoding, max(reading, NEARLY), most


@njit(nogil=True)
def _purge(entries, n, done, num_done):
    """Take out those that have ended; they are copied to `done`, as far as that has room. Returns both numbers."""
    kept = 0
    for i in range(n):
        if entries[i, ENDED] > 0:
            if num_done < len(done):
                done[num_done] = entries[i]
                num_done += 1
        else:
            if kept < i:
                entries[kept] = entries[i]
            kept += 1
    return kept, num_done


@njit(nogil=True)
def advance(entries, n, clock, until, scale, tables, chunks, done, rounds_log):
    """Do all rounds that start before `until`; a round that ends after it keeps its entries until it has ended.

    Args:
        entries: float64 [room, NUM_COLUMNS], the first `n` of them in order of arrival; changed in place.
        clock: when the last round ended.
        scale: seconds of this group over those of `tables`.
        tables: the fields of `GroupTables`.
        chunks: float64 [room], scratch.
        done: float64 [room, NUM_COLUMNS], filled with those that ended by `until`.
        rounds_log: float64 [1 + length, 2], or [0, 2] for none: a ring of (clock, rounds in all by then), after a row
            that says how many were entered, and the rounds in all.

    Returns:
        Entries left, the clock, entries in `done`.
    """
    num_done = 0
    while True:
        if clock <= until:
            n, num_done = _purge(entries, n, done, num_done)
        if n == 0 or clock >= until:
            return n, clock, num_done
        _admit(entries, n, tables[4])
        seconds, reads, most = _round(entries, n, tables, chunks)
        seconds *= scale
        rounds = 1.0
        if not reads:
            rounds = most
            if until < np.inf:
                rounds = min(most, max(1.0, np.ceil((until - clock) / seconds)))
        clock += rounds * seconds
        if len(rounds_log) > 0:
            rounds_log[0, 1] += rounds
            at = 1 + int(rounds_log[0, 0]) % (len(rounds_log) - 1)
            rounds_log[at, 0], rounds_log[at, 1] = clock, rounds_log[0, 1]
            rounds_log[0, 0] += 1.0
        for i in range(n):
            if entries[i, RUNS] == 0:
                continue
            if entries[i, READ] >= entries[i, PROMPT]:
                entries[i, MADE] += rounds * tables[4][int(entries[i, MODEL]), 4]
            elif chunks[i] > 0:
                entries[i, READ] += chunks[i]
                if entries[i, READ] >= entries[i, PROMPT]:
                    entries[i, MADE], entries[i, FIRST] = 1.0, clock
            if entries[i, MADE] >= entries[i, TOTAL] - NEARLY:
                entries[i, ENDED] = clock


@njit(nogil=True)
def foresee(entries, n, clock, scale, tables, chunks, copies, done):
    """What becomes of all entries if nobody joins: fills `done`, in any order, each with its first token and its end.

    Answers are taken to be as long as expected, and a token longer than what is there. Returns how many are late.
    """
    for i in range(n):
        copies[i] = entries[i]
        copies[i, ENDED] = 0.0
        per_pass = tables[4][int(entries[i, MODEL]), 4]
        copies[i, TOTAL] = max(entries[i, EXPECTED], entries[i, MADE] + per_pass)
    _, _, num_done = advance(copies, n, clock, np.inf, scale, tables, chunks, done, np.empty((0, 2)))
    late = 0
    for i in range(num_done):
        late += is_late(done[i])
    return late


@njit(nogil=True)
def is_late(entry):
    """Whether an entry that has ended missed one of its deadlines."""
    pace = entry[PACE] * max(entry[MADE] - 1.0, 1.0)
    return entry[ENDED] > entry[BY] or entry[FIRST] > entry[FIRST_BY] or entry[ENDED] - entry[FIRST] > pace


@njit(nogil=True)
def starts(entries, n, model):
    """Whether nothing of `model` is there."""
    return not (entries[:n, MODEL] == model).any()


@njit(nogil=True)
def consider(entries, n, clock, now, scale, tables, chunks, copies, done, entry):
    """Let `entry` join on trial: (when it would end, its first token, is it late, how many others it makes late)."""
    begin = max(clock, now) if n == 0 else clock
    entries[n] = entry
    entries[n, STARTS] = starts(entries, n, entry[MODEL])
    late = foresee(entries, n + 1, begin, scale, tables, chunks, copies, done)
    end = first = 0.0
    own = False
    for i in range(n + 1):
        if done[i, NUMBER] == entry[NUMBER]:
            end, first, own = done[i, ENDED], done[i, FIRST], is_late(done[i])
    others = late - own
    if others > 0:
        others -= foresee(entries, n, begin, scale, tables, chunks, copies, done)
    return end, first, own, max(others, 0)
