"""`Heuristic`: longer drafts after full acceptance, shorter ones after a rejection."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.speculation.policies.base import LengthPolicy, check_least
from paceline.speculation.records import BatchStats, DraftStats


@dataclass(frozen=True, slots=True)
class Heuristic(LengthPolicy):
    """Two more tokens after a draft that was accepted in full, one less after any other, as in assisted generation.

    The baseline of DISCO (Mamou et al. 2024). The length never falls below `least`, so drafts are never switched off;
    an empty proposal changes nothing.
    """

    start: int = 5
    least: int = 1
    num_draft_tokens: int = 20

    def __post_init__(self) -> None:
        check_least("least", self.least, 1)
        if not self.least <= self.start <= self.num_draft_tokens:
            problem = f"{self.start} is not between least={self.least} and num_draft_tokens={self.num_draft_tokens}"
            raise InvalidParameter("start", problem, "order the three numbers")

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """From the budget of each request's latest draft and whether that was accepted in full."""
        return [self._budget(request) for request in requests]

    def _budget(self, request: DraftStats) -> int:
        if request.last_budget is None:
            return self.start
        in_full = request.last_accepted_tokens == request.last_depth
        return min(self.num_draft_tokens, max(self.least, request.last_budget + (2 if in_full else -1)))
