"""How many rows a step may have: the trade between prefill speed and the time between tokens.

A larger budget reads prompts faster, because more rows share one reading of the weights, and makes every request that
decodes beside wait longer. Sarathi-Serve (Agrawal et al. 2024) takes the largest budget whose pass meets the latency
target; without a target the smallest that loses little prefill speed is enough.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter

ENOUGH = 0.95
"""Share of the best prefill speed that is enough where no latency was asked for."""


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """One token budget and what it means.

    Attributes:
        token_budget: rows of a step, `SchedulerConfig.max_num_batched_tokens`.
        chunk: prompt tokens among them when `num_decodes` requests decode beside.
        seconds: of the pass, and so between the tokens of every request that decodes beside.
        prefill_rate: prompt tokens per second.
        share: of the best prefill rate in the table.
    """

    token_budget: int
    chunk: int
    seconds: float
    prefill_rate: float
    share: float


def trade_off(
    pass_seconds: Callable[[int, float], float], budgets: Sequence[int], num_decodes: int = 1, context: float = 0
) -> list[BudgetChoice]:
    """What every budget of `budgets` that leaves room for a chunk means.

    Args:
        pass_seconds: t(rows, context), e.g. a `CostProfile`.
        num_decodes: requests that decode beside the chunk, one row each.
        context: mean tokens in the cache before a row.

    Raises:
        InvalidParameter: no budget is larger than `num_decodes`, or that is negative.
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
"""Widths of a tile that are looked for."""
_STEP = 0.75
"""Of a tile's time that the first row of the next one must take."""


def tile_of(seconds: Mapping[int, float], tiles: Sequence[int] = TILES) -> int | None:
    """The width of the matrix products' tiles, from t(T), t(T + 1) and t(2 T) at each width T of `tiles`.

    A row beyond a full tile takes as long as a tile of them (Agrawal et al. 2023, SARATHI, section 4.4): with tiles of
    T rows, t(nT + 1) - t(nT) is a tile's time at every n. The widest T for which that holds from T on; None for none.
    """
    for tile in reversed([width for width in tiles if {width, width + 1, 2 * width} <= set(seconds)]):
        wider = [w for w in tiles if w >= tile and {w, w + 1, 2 * w} <= set(seconds)]
        per_row = {w: (seconds[2 * w] - seconds[w]) / w for w in wider}
        if all(per_row[w] > 0 and seconds[w + 1] - seconds[w] >= _STEP * tile * per_row[w] for w in wider):
            return tile
    return None
