"""What one pass of a model in a group costs, by its entries, compiled; and what an entry is.

An *entry* is a request in a group, a row of a float64 array. Numbers in, numbers out; `group.py` says what they mean.
Not for the order of passes (`rounds.py`, `lanes.py`).
"""

import numpy as np

from paceline.models.compiled.kernel import inner

MODEL, PROMPT, READ, MADE, TOTAL, EXPECTED, RUNS, FIRST, ENDED, BY, FIRST_BY, PACE, NUMBER, LANE = range(14)
"""Columns: model of the group; tokens of the prompt, and of it those read; tokens made, those that there will be, and
those that are expected; 1 once it has a seat; when its first token and its end came (0 before); seconds of the clock by
which its end and its first token are due; seconds per further token that it may take; its number; its lane."""
NUM_COLUMNS = 14
NEARLY = 1e-9
GATHER = 0.005
"""Seconds: requests that come so soon after the first share its first pass (`engine/threads/engine_thread.py`). It
begins no later for that: they have waited while it began."""


@inner
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


@inner
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


@inner
def pass_seconds(entries, n, tables, chunks, m, lane):
    """Seconds of a lane's pass for decodes and for prompts, 0 without; after how many passes one of its requests ends.

    What a pass costs besides belongs to the decodes where there are any. A prompt's rows cost what they cost after what
    was read of it before, on average over all rows of prompts. `chunks` is filled in: rows that each entry reads.
    """
    rows, contexts, seconds, segments, limits = tables
    decodes, context, requests, most = 0, 0.0, 0, np.inf
    for i in range(n):
        if entries[i, MODEL] != m or entries[i, LANE] != lane or entries[i, RUNS] == 0 or entries[i, ENDED] > 0:
            continue
        chunks[i] = 0.0
        if entries[i, READ] >= entries[i, PROMPT]:
            decodes += 1
            context += entries[i, PROMPT] + 0.5 * entries[i, EXPECTED]
            most = min(most, np.ceil((entries[i, TOTAL] - entries[i, MADE]) / limits[m, 4] - NEARLY))
    decode_rows = decodes * limits[m, 5]
    left, prompt_rows, read_before = max(limits[m, 2] - decode_rows, 1.0), 0.0, 0.0
    for i in range(n):
        if entries[i, MODEL] != m or entries[i, LANE] != lane or entries[i, RUNS] == 0 or entries[i, ENDED] > 0:
            continue
        if entries[i, READ] >= entries[i, PROMPT] or left <= 0:
            continue
        chunks[i] = min(left, entries[i, PROMPT] - entries[i, READ])
        left -= chunks[i]
        prompt_rows += chunks[i]
        read_before += chunks[i] * entries[i, READ]
        requests += 1
    requests += decodes
    if requests == 0:
        return 0.0, 0.0, most
    context = context / decodes if decodes > 0 else 0.0
    read_before = read_before / prompt_rows if prompt_rows > 0.0 else 0.0
    besides = (requests - 1) * lookup(rows[m], contexts[m], segments[m].reshape(-1, 1), 0.0, context) + limits[m, 0]
    if decodes == 0:
        return 0.0, lookup(rows[m], contexts[m], seconds[m, 1], prompt_rows, read_before) + besides, most
    decoding = lookup(rows[m], contexts[m], seconds[m, 0], decode_rows, context) + limits[m, 6] + besides
    if prompt_rows == 0.0:
        return decoding, 0.0, most
    reading = lookup(rows[m], contexts[m], seconds[m, 1], decode_rows + prompt_rows, read_before)
    reading -= lookup(rows[m], contexts[m], seconds[m, 1], decode_rows, read_before)
    return decoding, max(reading, NEARLY), most


@inner
def admit(entries, n, m, lane, seats, room):
    """Give seats to those of a lane that wait, oldest first, while there are seats and room for keys and values.

    One that finds no room holds up those after it; one alone always finds it. Returns how many got a seat.
    """
    running = 0
    for i in range(n):
        if entries[i, MODEL] == m and entries[i, LANE] == lane and entries[i, RUNS] == 1 and entries[i, ENDED] == 0:
            running += 1
            room -= entries[i, PROMPT] + entries[i, EXPECTED]
    admitted = 0
    for i in range(n):
        if entries[i, MODEL] != m or entries[i, LANE] != lane or entries[i, RUNS] == 1:
            continue
        need = entries[i, PROMPT] + entries[i, EXPECTED]
        if running > 0 and (running >= seats or room < need):
            break
        entries[i, RUNS] = 1
        room, running, admitted = room - need, running + 1, admitted + 1
    return admitted


@inner
def go_on(entries, n, m, lane, chunks, limits, passes, clock):
    """What `passes` passes that end at `clock` give the entries of a lane; how many have had a first token or ended."""
    events = 0
    for i in range(n):
        if entries[i, MODEL] != m or entries[i, LANE] != lane or entries[i, RUNS] == 0 or entries[i, ENDED] > 0:
            continue
        if entries[i, READ] >= entries[i, PROMPT]:
            entries[i, MADE] += passes * limits[m, 4]
        elif chunks[i] > 0:
            entries[i, READ] += chunks[i]
            if entries[i, READ] >= entries[i, PROMPT]:
                entries[i, MADE], entries[i, FIRST] = 1.0, clock
                events += 1
        if entries[i, MADE] >= entries[i, TOTAL] - NEARLY:
            entries[i, ENDED] = clock
            events += 1
    return events


@inner
def purge(entries, n, until, done, num_done):
    """Take out those that have ended by `until`; they are copied to `done` while it has room. Returns both numbers."""
    kept = 0
    for i in range(n):
        if 0 < entries[i, ENDED] <= until:
            if num_done < len(done):
                copy_row(done, num_done, entries, i)
                num_done += 1
        else:
            if kept < i:
                copy_row(entries, kept, entries, i)
            kept += 1
    return kept, num_done


@inner
def copy_row(target, to, source, row):
    """`target[to] = source[row]`, a number at a time: Numba compiles a message about shapes with an assigned slice."""
    for column in range(source.shape[1]):
        target[to, column] = source[row, column]
