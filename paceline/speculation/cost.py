"""`CostProfile`: measured seconds t(M, context) of a target pass by number of rows M and their context.

The one table of costs for policies, scheduler and simulators. Not the place for measuring it (`evaluation/tune.py`) or
storing it (`scheduling/profile.py`).
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from paceline.errors import InvalidParameter

_MOST_KNOWN = 1 << 10


class CostProfile:
    """t(M, context) by linear interpolation between measured points, extrapolated from the last two beyond the table.

    Args:
        seconds_by_rows: rows to seconds, at least one point; constant below the first point. A pass slower than one
            with more rows was disturbed and gets the latter's time. For several contexts see `by_context`.

    Raises:
        InvalidParameter: no points, rows below 1 or times that are not positive.
    """

    def __init__(self, seconds_by_rows: Mapping[int, float]) -> None:
        self._contexts, self._curves = [0], [_Curve(seconds_by_rows)]

    @classmethod
    def by_context(cls, tables: Mapping[int, Mapping[int, float]]) -> "CostProfile":
        """From one table per context (tokens in the cache before the rows); a longer context never costs less.

        Raises:
            InvalidParameter: no tables, a negative context, or as `CostProfile`.
        """
        if not tables or min(tables) < 0:
            problem = f"the contexts are {sorted(tables)}"
            raise InvalidParameter("contexts", problem, "measure at one context of 0 or more tokens at least")
        profile = cls.__new__(cls)
        profile._contexts = sorted(tables)
        profile._curves = [_Curve(tables[context]) for context in profile._contexts]
        return profile

    @property
    def contexts(self) -> Sequence[int]:
        """Measured contexts, ascending."""
        return tuple(self._contexts)

    @property
    def rows(self) -> Sequence[int]:
        """Measured numbers of rows, ascending, at the shortest context."""
        return tuple(self._curves[0].rows)

    def __call__(self, rows: float, context: float = 0) -> float:
        """Seconds of a pass over `rows` rows with a mean of `context` tokens in the cache before each."""
        contexts = self._contexts
        if context <= contexts[0] or len(contexts) == 1:
            return self._curves[0](rows)
        right = min(bisect_right(contexts, context), len(contexts) - 1)
        start = self._curves[right - 1](rows)
        rise = max(0.0, self._curves[right](rows) - start)
        return start + rise * (context - contexts[right - 1]) / (contexts[right] - contexts[right - 1])


class _Curve:
    """Seconds by rows at one context."""

    def __init__(self, seconds_by_rows: Mapping[int, float]) -> None:
        points = sorted(seconds_by_rows.items())
        if not points:
            raise InvalidParameter("seconds_by_rows", "the table is empty", "measure at least a pass over one row")
        for rows, seconds in points:
            if rows < 1 or not 0 < seconds < float("inf"):
                raise InvalidParameter("seconds_by_rows", f"{rows} rows take {seconds} s", "give positive times")
        self.rows = [rows for rows, _ in points]
        seconds = [float(seconds) for _, seconds in points]
        self._seconds = [min(seconds[i:]) for i in range(len(seconds))]
        self._known: dict[float, float] = {}  # policies ask for the same few numbers of rows in every step

    def __call__(self, rows: float) -> float:
        seconds = self._known.get(rows)
        if seconds is None:
            seconds = self._between(rows)
            if len(self._known) < _MOST_KNOWN:
                self._known[rows] = seconds
        return seconds

    def _between(self, rows: float) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self._seconds[0]
        right = min(bisect_right(self.rows, rows), len(self.rows) - 1)
        low, high = self.rows[right - 1], self.rows[right]
        start, end = self._seconds[right - 1], self._seconds[right]
        return start + (end - start) * (rows - low) / (high - low)
