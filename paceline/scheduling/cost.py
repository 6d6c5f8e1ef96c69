"""`CostProfile`: measured seconds of a target pass by its rows, t(M).

One table for everyone who must know what a row costs. Not the place for measuring it (`benchmarks/`).
"""

from bisect import bisect_right
from collections.abc import Mapping

from paceline.errors import InvalidParameter


class CostProfile:
    """t(M) by straight lines between measured points, the last line prolonged beyond the table.

    Args:
        seconds_by_rows: rows to seconds, at least one point; below the first point the first time holds. A table that
            falls somewhere is noise and is raised to the largest time before it.

    Raises:
        InvalidParameter: no points, rows below 1 or times that are not positive.
    """

    def __init__(self, seconds_by_rows: Mapping[int, float]) -> None:
        points = sorted(seconds_by_rows.items())
        if not points:
            raise InvalidParameter("seconds_by_rows", "the table is empty", "measure at least a pass over one row")
        for rows, seconds in points:
            if rows < 1 or not 0 < seconds < float("inf"):
                raise InvalidParameter("seconds_by_rows", f"{rows} rows take {seconds} s", "give positive times")
        self._rows = [rows for rows, _ in points]
        self._seconds: list[float] = []
        for _, seconds in points:
            self._seconds.append(max(seconds, self._seconds[-1]) if self._seconds else float(seconds))

    def __call__(self, rows: int) -> float:
        """Seconds of a pass over `rows` rows."""
        if rows <= self._rows[0] or len(self._rows) == 1:
            return self._seconds[0]
        right = min(bisect_right(self._rows, rows), len(self._rows) - 1)
        low, high = self._rows[right - 1], self._rows[right]
        start, end = self._seconds[right - 1], self._seconds[right]
        return start + (end - start) * (rows - low) / (high - low)
