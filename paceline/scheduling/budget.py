"""The token budget of a step: the trade-off between prefill throughput and time between tokens.

A larger budget gives a higher prefill rate, because more rows share one reading of the weights, but makes every request
that decodes in the same step wait longer. Sarathi-Serve (Agrawal et al. 2024) takes the largest budget whose pass meets
the latency target; without a target, the smallest with nearly the best prefill rate is chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter

ENOUGH = 0.95
"""Fraction of the best prefill rate that is sufficient without a latency target."""


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """One token budget and its consequences.

    Attributes:
        token_budget: rows of a step, `SchedulerConfig.max_num_batched_tokens`.
        chunk: prompt tokens among them when `num_decodes` requests decode in the same step.
        seconds: of the pass, hence the time between tokens of the requests that decode in it.
        prefill_rate: prompt tokens per second.
        share: `prefill_rate` over the best one in the table.
    """

    token_budget: int
    chunk: int
    seconds: float
    prefill_rate: float
    share: float


def trade_off(
    pass_seconds: Callable[[int, float], float], budgets: Sequence[int], num_decodes: int = 1, context: float = 0
) -> list[BudgetChoice]:
    """The consequences of every budget of `budgets` that leaves rows for a chunk.

    Args:
        pass_seconds: t(rows, context), e.g. a `CostProfile`.
        num_decodes: requests that decode in the same step, one row each.
        context: mean tokens in the cache before a row.

    Raises:
        InvalidParameter: no budget is larger than `num_decodes`, or `num_decodes` is negative.
    """
    if num_decodes < 0:
        raise InvalidParameter("num_decodes", f"{num_decodes} is less than 0", "0 reads prompts alone")
    fitting = [budget for budget in budgets if budget > num_decodes]
    if not fitting:
        problem = f"{num_decodes} requests fill every budget of {list(budgets)}"
        raise InvalidParameter("num_decodes", problem, "let fewer requests decode beside, or measure more rows")
    timed = [(budget, pass_seconds(budget, context)) for budget in fitting]
    best = max((budget - num_decodes) / seconds for budget, seconds in timed)
    return [BudgetChoice(b, b - num_decodes, s, (b - num_decodes) / s, (b - num_decodes) / s / best) for b, s in timed]


def choose_budget(choices: Sequence[BudgetChoice], target_seconds: float | None = None) -> BudgetChoice:
    """The largest budget whose pass takes at most `target_seconds`; without a target the smallest that is `ENOUGH`.

    Raises:
        InvalidParameter: even the smallest budget takes longer, or the target is not above 0.
    """
    if target_seconds is not None and not target_seconds > 0:
        raise InvalidParameter("target_ms", f"{1000 * target_seconds:g} is not above 0", "leave it out for no target")
    if target_seconds is None:
        return min((c for c in choices if c.share >= ENOUGH), key=lambda c: c.token_budget)
    meeting = [choice for choice in choices if choice.seconds <= target_seconds]
    if not meeting:
        least = min(choices, key=lambda c: c.seconds)
        problem = f"the smallest budget, {least.token_budget} rows, takes {1000 * least.seconds:.1f} ms"
        raise InvalidParameter("target_ms", problem, "allow more, or use a smaller model, int8 or more threads")
    return max(meeting, key=lambda c: c.token_budget)


TILES = (8, 16, 32, 64, 128)
"""Candidate tile widths."""
_STEP = 0.75
"""Fraction of a tile's time that the first row of the next tile must cost."""


def tile_of(seconds: Mapping[int, float], tiles: Sequence[int] = TILES) -> int | None:
    """The width of the matrix products' tiles, from t(T), t(T + 1) and t(2 T) at each width T of `tiles`.

    One row beyond a full tile costs as much as a whole tile (Agrawal et al. 2023, SARATHI, section 4.4): with tiles of
    T rows, t(nT + 1) - t(nT) is the time of a tile for every n. Returns the widest T for which that holds at all
    measured widths from T on; None without one.
    """
    for tile in reversed([width for width in tiles if {width, width + 1, 2 * width} <= set(seconds)]):
        wider = [w for w in tiles if w >= tile and {w, w + 1, 2 * w} <= set(seconds)]
        per_row = {w: (seconds[2 * w] - seconds[w]) / w for w in wider}
        if all(per_row[w] > 0 and seconds[w + 1] - seconds[w] >= _STEP * tile * per_row[w] for w in wider):
            return tile
    return None
