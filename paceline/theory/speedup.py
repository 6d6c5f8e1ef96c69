"""Speed-up of speculative decoding, and the best speculation length.

Two forms. The closed form has time in plain target passes and one parameter, the cost ratio c (one draft step over one
target pass), and assumes that a verify pass costs as much as a plain one. The measured form takes times: t(M) seconds
for a pass over M rows, and seconds per draft step. Works on floats and Fractions. Not the place for measuring
(`benchmarks/`) or for choosing a length while serving (`speculation/`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.theory.acceptance import expected_tokens
from paceline.theory.checks import Number, check_cost, check_count, check_positive, check_rate
from paceline.theory.round import PlainPrices, Round, speedup

MAX_LENGTH = 128
"""Default upper limit of the scan for the best length; with cost ratio 0 there is no finite optimum."""

_TIE = 1e-12  # a longer draft must win by more than float noise


class BestLength(NamedTuple):
    """The speculation length with the largest speed-up; 0 means do not speculate."""

    num_draft_tokens: int
    speedup: Number


def wall_time_factor(alpha: Number, num_draft_tokens: int, cost_ratio: Number) -> Number:
    """S = (1 - alpha^(g + 1)) / ((1 - alpha)(g c + 1)): how many times faster than plain decoding.

    Leviathan et al. 2023, theorem 3.8.
    """
    check_cost("cost_ratio", cost_ratio)
    return expected_tokens(alpha, num_draft_tokens) / (num_draft_tokens * cost_ratio + 1)


def can_gain(alpha: Number, cost_ratio: Number) -> bool:
    """Whether some length has a speed-up above 1, i.e. alpha > c (Leviathan et al. 2023, corollary 3.9)."""
    check_rate("alpha", alpha)
    check_cost("cost_ratio", cost_ratio)
    return alpha > cost_ratio


def guaranteed_speedup(alpha: Number, cost_ratio: Number) -> Number:
    """(1 + alpha) / (1 + c): the speed-up of a single drafted token, which the best length at least reaches.

    A gain only when `can_gain`. Leviathan et al. 2023, corollary 3.9.
    """
    return wall_time_factor(alpha, 1, cost_ratio)


def operations_factor(alpha: Number, num_draft_tokens: int, operations_ratio: Number) -> Number:
    """(1 - alpha)(g c' + g + 1) / (1 - alpha^(g + 1)): arithmetic per emitted token, relative to plain decoding.

    `operations_ratio` c' is draft over target operations per token. Leviathan et al. 2023, theorem 3.11.
    """
    check_cost("operations_ratio", operations_ratio)
    rows = num_draft_tokens + 1
    return (num_draft_tokens * operations_ratio + rows) / expected_tokens(alpha, num_draft_tokens)


def best_length(alpha: Number, cost_ratio: Number, max_length: int = MAX_LENGTH) -> BestLength:
    """The length in 0 .. max_length with the largest `wall_time_factor`, the smallest one on ties.

    A scan over whole numbers: Leviathan et al. 2023, section 3.5, leaves the optimum to numerics.
    """
    return _scan(lambda length: wall_time_factor(alpha, length, cost_ratio), max_length)


def oracle_tokens(alpha: Number) -> Number:
    """1 / (1 - alpha): tokens per pass when each draft ends right before its first rejection; infinite at alpha = 1.

    Leviathan et al. 2023, section 3.5.
    """
    check_rate("alpha", alpha)
    return 1 / (1 - alpha) if alpha < 1 else float("inf")


def oracle_speedup(alpha: Number, cost_ratio: Number) -> Number:
    """1 / (1 - alpha + c alpha): speed-up when an oracle ends each draft right before its first rejection.

    A pass then verifies alpha / (1 - alpha) drafted tokens on average, all of them accepted. With c above 1 the oracle
    drafts nothing and the speed-up is 1.
    """
    check_rate("alpha", alpha)
    check_cost("cost_ratio", cost_ratio)
    seconds_per_token = 1 - alpha + min(cost_ratio, 1) * alpha
    return 1 / seconds_per_token if seconds_per_token else float("inf")


def oracle_gain(alpha: Number, cost_ratio: Number, max_length: int = MAX_LENGTH) -> Number:
    """`oracle_speedup` over the best fixed length's: an upper bound on the gain of adaptive lengths.

    Largest near alpha = 1 and c about 1.4 (1 - alpha), where it approaches e / (e - 1) = 1.58. A `max_length` that is
    too short for the best fixed length makes it look larger.
    """
    return oracle_speedup(alpha, cost_ratio) / best_length(alpha, cost_ratio, max_length).speedup


def round_yield(alpha: Number, num_draft_tokens: int) -> Number:
    """r' = E / (K + 1): emitted tokens over the most a pass can emit, as in Chen et al. 2023, figure 1."""
    return expected_tokens(alpha, num_draft_tokens) / (num_draft_tokens + 1)


def yield_speedup(tokens_per_slot: Number, num_draft_tokens: int, draft_time: Number, target_time: Number) -> Number:
    """r' (K + 1) t_target / (K t_draft + t_target): the speed-up from a measured `round_yield` r'.

    `draft_time` and `target_time` are per step, in one unit. With a free draft it is r' (K + 1), the acceptance length.
    """
    check_rate("tokens_per_slot", tokens_per_slot)
    check_count("num_draft_tokens", num_draft_tokens)
    check_cost("draft_time", draft_time)
    check_positive("target_time", target_time)
    tokens_per_pass = tokens_per_slot * (num_draft_tokens + 1)
    return tokens_per_pass * target_time / (num_draft_tokens * draft_time + target_time)


def measured_speedup(
    tokens_per_pass: Number,
    num_draft_tokens: int,
    pass_seconds: Callable[[int], Number],
    draft_seconds: Number = 0,
) -> Number:
    """E t(1) / (k d + t(k + 1)): the speed-up a cost profile predicts.

    Args:
        tokens_per_pass: E, measured (the acceptance length) or from `expected_tokens`.
        num_draft_tokens: k, so that a verify pass has k + 1 rows.
        pass_seconds: t, the time of a target pass by its rows, in any unit; for a batch of B requests pass
            ``lambda rows: t(B * rows)``.
        draft_seconds: d, the time of one draft step in the same unit.
    """
    check_positive("tokens_per_pass", tokens_per_pass)
    check_count("num_draft_tokens", num_draft_tokens)
    check_cost("draft_seconds", draft_seconds)
    for rows in (1, num_draft_tokens + 1):
        check_positive("pass_seconds", pass_seconds(rows))
    number: Any = tokens_per_pass  # the price of a round is typed for seconds, and as right for Fractions
    seconds: Any = pass_seconds
    step: Any = draft_seconds
    prices = PlainPrices(lambda rows, _context: seconds(rows), step)
    return speedup(number, Round(1, num_draft_tokens, num_draft_tokens), prices)


def best_measured_length(
    alpha: Number,
    pass_seconds: Callable[[int], Number],
    draft_seconds: Number = 0,
    max_length: int = MAX_LENGTH,
) -> BestLength:
    """The length in 0 .. max_length with the largest `measured_speedup` at acceptance rate `alpha`, smallest on ties.

    The scan a goodput policy makes at every step (Liu et al. 2024, SmartSpec), here for one rate.
    """

    def speedup(length: int) -> Number:
        return measured_speedup(expected_tokens(alpha, length), length, pass_seconds, draft_seconds)

    return _scan(speedup, max_length)


def _scan(speedup: Callable[[int], Number], max_length: int) -> BestLength:
    """The whole number in 0 .. max_length where `speedup` is largest."""
    check_count("max_length", max_length)
    best = BestLength(0, speedup(0))
    for length in range(1, max_length + 1):
        here = speedup(length)
        if here > best.speedup * (1 + _TIE if isinstance(here, float) else 1):
            best = BestLength(length, here)
    return best
