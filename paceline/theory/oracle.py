"""Upper bound on the speed of any length policy, given recorded drafts.

A draft's run is the number of its tokens that the target would have accepted had it been long enough. Closed forms for
a constant acceptance rate are in `speedup.py`.
"""

from collections.abc import Callable, Sequence

from paceline.errors import InvalidParameter
from paceline.theory.checks import check_count

_ROUNDS = 50


def rate_of(runs: Sequence[int], lengths: Sequence[int], step_seconds: Callable[[int], float]) -> float:
    """Tokens per second when draft i has `lengths[i]` tokens: sum of min(run, length) + 1 over sum of seconds.

    Args:
        runs, lengths: one entry per step.
        step_seconds: number of tokens to seconds of a step that drafts and verifies them.
    """
    if not runs or len(runs) != len(lengths):
        raise InvalidParameter("lengths", f"has {len(lengths)} entries for {len(runs)} runs", "give one for each run")
    tokens = sum(min(run, length) + 1 for run, length in zip(runs, lengths, strict=True))
    return tokens / sum(step_seconds(length) for length in lengths)


def oracle_lengths(runs: Sequence[int], step_seconds: Callable[[int], float], max_length: int) -> list[int]:
    """The lengths with the highest `rate_of`, by Dinkelbach's method: an upper bound for policies up to `max_length`.

    Each iteration takes, for each step, the length with the most tokens minus (rate so far) * seconds.
    """
    check_count("max_length", max_length)
    seconds = [step_seconds(length) for length in range(max_length + 1)]
    lengths = [0] * len(runs)
    rate = rate_of(runs, lengths, step_seconds)
    for _ in range(_ROUNDS):
        lengths = [_worth(run, seconds, rate) for run in runs]
        better = rate_of(runs, lengths, step_seconds)
        if better <= rate:
            break
        rate = better
    return lengths


def best_fixed(runs: Sequence[int], step_seconds: Callable[[int], float], max_length: int) -> tuple[int, float]:
    """(length, tokens per second) of the best length that is the same at every step, the smallest on ties."""
    check_count("max_length", max_length)
    rates = [rate_of(runs, [length] * len(runs), step_seconds) for length in range(max_length + 1)]
    best = max(range(max_length + 1), key=lambda length: (rates[length], -length))
    return best, rates[best]


def _worth(run: int, seconds: Sequence[float], rate: float) -> int:
    """The length with the most tokens net of their time, the smallest on ties."""
    return max(range(len(seconds)), key=lambda length: (min(run, length) - rate * seconds[length], -length))
