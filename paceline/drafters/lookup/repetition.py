"""`read`: where the end of a text stood before, and how often such repetitions go on. Compiled by Numba.

A text is searched from its end to its beginning, a nanosecond a token, so that nothing is indexed for a request that
seldom asks. Not for choosing among several continuations (`grow.py`).
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from paceline.models.compiled.disk import keep_on_disk
from paceline.models.compiled.kernel import entry, kernel

MOST_WEIGHT = 200
"""Repetitions after which the oldest are forgotten."""


@kernel
def _find(tokens, length, most, least, earliest, longest):
    """(end, matched) as of `read`."""
    best, found = least - 1, 0
    for end in range(length - 1, 0, -1):
        if tokens[end - 1] != tokens[length - 1]:
            continue
        size = 1
        while size < most and size < end and tokens[end - size - 1] == tokens[length - size - 1]:
            size += 1
        if size > best or (earliest and found and size == best):
            best, found = size, end
            if size == most and not earliest:
                break
    if not found:
        return 0, 0
    while best < longest and best < found and tokens[found - best - 1] == tokens[length - best - 1]:
        best += 1
    return found, best


@entry
def read(tokens, start, length, most, least, earliest, rates, weights):
    """Learn from the tokens [start, length), then find what goes on at the end.

    Args:
        tokens: [room] int32, of which `length` are the text.
        most, least: longest and shortest piece of its end that is looked up.
        earliest: which of several occurrences counts: the first one, not the latest.
        rates: [lengths] how often repetitions of 1, 2, ... tokens went on, and `weights`, of how many that is told;
            both are changed.

    Returns:
        (end, matched): the place after an earlier occurrence of the longest such piece that has one, and how many
        tokens before it are those at the end, counted up to the longest that has a rate of its own; (0, 0) without.
    """
    longest = len(rates)
    for end in range(max(1, start), length):
        found, matched = _find(tokens, end, most, least, earliest, longest)
        if matched:
            place = min(matched, longest) - 1
            weights[place] = min(MOST_WEIGHT, weights[place] + 1)
            went_on = 1.0 if tokens[found] == tokens[end] else 0.0
            rates[place] += (went_on - rates[place]) / weights[place]
    return _find(tokens, length, most, least, earliest, longest)


@cache
def reader() -> Callable[..., tuple[int, int]]:
    """`read`, kept on disk until this file changes."""
    return keep_on_disk(read, [Path(__file__)])
