"""`Heuristic`: longer after a full acceptance, shorter after any other."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.speculation.policies.base import LengthPolicy, check_least
from paceline.speculation.records import BatchStats, DraftStats


@dataclass(frozen=True, slots=True)
class Heuristic(LengthPolicy):
    """Two more after a draft that was accepted in full, one less after any other: the rule of assisted generation.

    The baseline that DISCO (Mamou et al. 2024) compares with. Never below `least`, so it cannot switch itself off; a
    draft that came back empty changes nothing.
    """

    start: int = 5
    least: int = 1
    most: int = 20

    def __post_init__(self) -> None:
        check_least("least", self.least, 1)
        if not self.least <= self.start <= self.most:
            problem = f"{self.start} is not between least={self.least} and most={self.most}"
            raise InvalidParameter("start", problem, "order the three numbers")

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """From the wanted length of each request's latest draft and its fate."""
        return [self._budget(request) for request in requests]

    def _budget(self, request: DraftStats) -> int:
        if request.last_budget is None:
            return self.start
        in_full = request.last_accepted_tokens == request.last_depth
        return min(self.most, max(self.least, request.last_budget + (2 if in_full else -1)))
