"""Tables of the closed forms by acceptance rate, speculation length and cost ratio.

`TABLES` names them. Not the place for printing (`cli/theory/group.py`) or for curves (`curves.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.theory.acceptance import accepted_count_law, expected_tokens
from paceline.theory.generation_time import generation_time
from paceline.theory.grid import Grid
from paceline.theory.speedup import best_length, operations_factor, wall_time_factor

_NUM_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of numbers; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]


def tokens_table(grid: Grid) -> Table:
    """`expected_tokens` by alpha and speculation length."""
    return _by_length("Expected tokens per target pass", grid, lambda a, g: float(expected_tokens(a, g)))


def speedup_table(grid: Grid) -> Table:
    """`wall_time_factor` by alpha and speculation length at the grid's first cost ratio."""
    cost_ratio = grid.cost_ratios[0]
    title = f"Speed-up over plain decoding, cost ratio {cost_ratio:g}"
    return _by_length(title, grid, lambda a, g: float(wall_time_factor(a, g, cost_ratio)))


def operations_table(grid: Grid) -> Table:
    """`operations_factor` by alpha and speculation length, the grid's first cost ratio taken as ratio of operations."""
    ratio = grid.cost_ratios[0]
    title = f"Arithmetic per token over plain decoding, operations ratio {ratio:g}"
    return _by_length(title, grid, lambda a, g: float(operations_factor(a, g, ratio)))


def deviation_table(grid: Grid) -> Table:
    """Deviation of the `generation_time` of 128 tokens by alpha and speculation length, at the first cost ratio."""
    cost_ratio = grid.cost_ratios[0]

    def deviation(alpha: float, length: int) -> float:
        return generation_time(accepted_count_law(alpha, length), _NUM_TOKENS, length * cost_ratio + 1).deviation

    title = f"Standard deviation of the time of {_NUM_TOKENS} tokens, in plain passes, cost ratio {cost_ratio:g}"
    return _by_length(title, grid, deviation)


def best_length_table(grid: Grid) -> Table:
    """`best_length` and its speed-up, one row for each pair of cost ratio and alpha; scans past the grid's lengths."""
    pairs = [(cost_ratio, alpha) for cost_ratio in grid.cost_ratios for alpha in grid.alphas]
    bests = [best_length(alpha, cost_ratio) for cost_ratio, alpha in pairs]
    rows = [(*pair, best.num_draft_tokens, float(best.speedup)) for pair, best in zip(pairs, bests, strict=True)]
    columns = ("cost ratio", "alpha", "best length", "speed-up")
    return Table("Best speculation length", columns, tuple(rows))


def _by_length(title: str, grid: Grid, value: Callable[[float, int], float]) -> Table:
    """Rows are alphas, columns speculation lengths."""
    rows = tuple((alpha, *(value(alpha, length) for length in grid.lengths)) for alpha in grid.alphas)
    return Table(title, ("alpha", *map(str, grid.lengths)), rows)


TABLES: dict[str, Callable[[Grid], Table]] = {
    "tokens": tokens_table,
    "speed-up": speedup_table,
    "best-length": best_length_table,
    "operations": operations_table,
    "deviation": deviation_table,
}
"""Every table by the name the command line gives it."""
