"""The named plots, as numbers: each builder turns a `Grid` into a `Chart` that `plots.draw` can draw.

`CURVES` names them. Not the place for drawing (`plots.py`); anyone may build a `Chart` of measured numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.theory.acceptance import accepted_count_law, expected_tokens
from paceline.theory.candidates import lookahead_tokens
from paceline.theory.checks import Number, check_count
from paceline.theory.generation_time import generation_time
from paceline.theory.grid import Grid
from paceline.theory.speedup import best_length, operations_factor, oracle_speedup, round_yield, wall_time_factor

_STEPS = 60
_NUM_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    Attributes:
        label: its name in the legend.
        x, y: the points, equally many.
        band: lower and upper y of a shaded band, one pair per point; None draws none.
        marked: indices of points to emphasise, e.g. an optimum.
        loose: single points, which no line joins.

    Raises:
        InvalidParameter: the lists differ in length.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[tuple[float, float]] | None = None
    marked: Sequence[int] = ()
    loose: bool = False

    def __post_init__(self) -> None:
        check_count("x", len(self.x), least=1)
        for name, values in (("y", self.y), ("band", self.band)):
            if values is not None and len(values) != len(self.x):
                raise InvalidParameter(name, f"has {len(values)} entries for {len(self.x)} points", "give one each")


@dataclass(frozen=True, slots=True)
class Chart:
    """A set of curves over one pair of axes.

    Attributes:
        discrete: every point is marked, since nothing lies between them.
        doubling: the horizontal axis is logarithmic, of base 2.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    discrete: bool = False
    doubling: bool = False


def tokens_curves(grid: Grid) -> Chart:
    """`expected_tokens` over the speculation length, one curve per alpha."""
    series = tuple(_over_lengths(f"alpha = {a:g}", grid, lambda g, a=a: expected_tokens(a, g)) for a in grid.alphas)
    return Chart("Expected tokens per target pass", _LENGTH, "tokens per pass", series, discrete=True)


def speedup_curves(grid: Grid) -> Chart:
    """`wall_time_factor` over the speculation length at the first cost ratio, each best length marked if shown."""
    cost_ratio = grid.cost_ratios[0]
    series = tuple(
        _over_lengths(
            f"alpha = {alpha:g}",
            grid,
            lambda length, alpha=alpha: wall_time_factor(alpha, length, cost_ratio),
            marked=[best for best in [best_length(alpha, cost_ratio).num_draft_tokens] if best in grid.lengths],
        )
        for alpha in grid.alphas
    )
    return Chart(f"Speed-up at cost ratio {cost_ratio:g}", _LENGTH, "times plain decoding", series, discrete=True)


def operations_curves(grid: Grid) -> Chart:
    """`operations_factor` over the speculation length at the first cost ratio, one curve per alpha."""
    ratio = grid.cost_ratios[0]
    series = tuple(
        _over_lengths(f"alpha = {a:g}", grid, lambda g, a=a: operations_factor(a, g, ratio)) for a in grid.alphas
    )
    title = f"Arithmetic per token at operations ratio {ratio:g}"
    return Chart(title, _LENGTH, "times plain decoding", series, discrete=True)


def yield_curves(grid: Grid) -> Chart:
    """`round_yield` over the speculation length: the share of possible tokens a pass emits (Chen et al., figure 1)."""
    series = tuple(_over_lengths(f"alpha = {a:g}", grid, lambda g, a=a: round_yield(a, g)) for a in grid.alphas)
    return Chart("Yield of a round", _LENGTH, "emitted tokens / (length + 1)", series, discrete=True)


def time_curves(grid: Grid) -> Chart:
    """`generation_time` of 128 tokens over the speculation length at the first cost ratio, one curve per alpha.

    The band is one standard deviation to each side (Chen et al. 2023, figure 1, left).
    """
    cost_ratio = grid.cost_ratios[0]

    def curve(alpha: float) -> Series:
        times = [
            generation_time(accepted_count_law(alpha, length), _NUM_TOKENS, length * cost_ratio + 1)
            for length in grid.lengths
        ]
        band = [(float(time.mean) - time.deviation, float(time.mean) + time.deviation) for time in times]
        return Series(f"alpha = {alpha:g}", list(grid.lengths), [float(time.mean) for time in times], band=band)

    title = f"Time of {_NUM_TOKENS} tokens at cost ratio {cost_ratio:g}, with standard deviation"
    return Chart(title, _LENGTH, "plain passes", tuple(map(curve, grid.alphas)), discrete=True)


def best_length_curves(grid: Grid) -> Chart:
    """`best_length` over the cost ratio from 0.01 to 1, one curve per alpha."""
    ratios = [10 ** (-2 + 2 * step / _STEPS) for step in range(_STEPS + 1)]
    series = tuple(
        Series(f"alpha = {alpha:g}", ratios, [float(best_length(alpha, c).num_draft_tokens) for c in ratios])
        for alpha in grid.alphas
    )
    return Chart("Best speculation length", "cost ratio", "drafted tokens", series)


def best_speedup_curves(grid: Grid) -> Chart:
    """The best fixed length's speed-up over alpha, one curve per cost ratio; the band reaches up to the oracle's."""
    alphas = [0.95 * step / _STEPS for step in range(_STEPS + 1)]

    def curve(cost_ratio: float) -> Series:
        fixed = [float(best_length(alpha, cost_ratio).speedup) for alpha in alphas]
        oracle = [float(oracle_speedup(alpha, cost_ratio)) for alpha in alphas]
        return Series(f"cost ratio {cost_ratio:g}", alphas, fixed, band=list(zip(fixed, oracle, strict=True)))

    title = "Best fixed length, and what an oracle could add"
    return Chart(title, "acceptance rate", "times plain decoding", tuple(map(curve, grid.cost_ratios)))


def candidate_curves(grid: Grid) -> Chart:
    """`lookahead_tokens` over 1 .. 16 candidates of the grid's longest length, one curve per alpha."""
    counts = list(range(1, 17))
    series = tuple(
        Series(f"alpha = {alpha:g}", counts, [float(lookahead_tokens(alpha, grid.max_length, b)) for b in counts])
        for alpha in grid.alphas
    )
    title = f"Independent candidates of {grid.max_length} tokens"
    return Chart(title, "candidates", "tokens per pass", series, discrete=True)


_LENGTH = "speculation length"


def _over_lengths(label: str, grid: Grid, value: Callable[[int], Number], marked: Sequence[int] = ()) -> Series:
    """A curve over the grid's lengths."""
    return Series(label, list(grid.lengths), [float(value(g)) for g in grid.lengths], marked=marked)


CURVES: dict[str, Callable[[Grid], Chart]] = {
    "tokens": tokens_curves,
    "speed-up": speedup_curves,
    "best-length": best_length_curves,
    "best-speed-up": best_speedup_curves,
    "operations": operations_curves,
    "yield": yield_curves,
    "time": time_curves,
    "candidates": candidate_curves,
}
"""Every plot by the name the command line gives it."""
