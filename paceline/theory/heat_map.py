"""`HeatMap`: numbers over two axes, zero in the middle of the colours. Drawn by `plots.draw`."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.theory.checks import check_count


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A grid of numbers.

    Attributes:
        columns, rows: the names of the cells along x and y.
        values: [rows][columns]; NaN where there is none.

    Raises:
        InvalidParameter: no cells, or values that do not match the names.
    """

    title: str
    x_label: str
    y_label: str
    value_label: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns), least=1)
        check_count("rows", len(self.rows), least=1)
        if len(self.values) != len(self.rows) or any(len(row) != len(self.columns) for row in self.values):
            problem = f"are not {len(self.rows)} rows of {len(self.columns)}"
            raise InvalidParameter("values", problem, "give one value per cell")
