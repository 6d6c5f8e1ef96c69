"""The range of a table or plot: acceptance rates, cost ratios and lengths to show.

Not the place for formulas.
"""

from dataclasses import dataclass

from paceline.theory.checks import check_cost, check_count, check_rate


@dataclass(frozen=True, slots=True)
class Grid:
    """The parameter values of tables and curves.

    Attributes:
        alphas: acceptance rates, one row or curve each.
        cost_ratios: draft step over target pass; where only one is shown it is the first.
        max_length: longest speculation length shown.

    Raises:
        InvalidParameter: a list is empty or an entry out of range.
    """

    alphas: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    cost_ratios: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    max_length: int = 8

    def __post_init__(self) -> None:
        check_count("alphas", len(self.alphas), least=1)
        check_count("cost_ratios", len(self.cost_ratios), least=1)
        check_count("max_length", self.max_length, least=1)
        for alpha in self.alphas:
            check_rate("alphas", alpha)
        for cost_ratio in self.cost_ratios:
            check_cost("cost_ratios", cost_ratio)

    @property
    def lengths(self) -> range:
        """0 .. max_length."""
        return range(self.max_length + 1)
