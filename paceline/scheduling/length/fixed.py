"""`Fixed`: the same length at every step."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.scheduling.length.base import DraftLaw, check_least
from paceline.scheduling.stats import BatchStats, DraftStats, PrefixStats


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `num_draft_tokens`; 0 is plain decoding."""

    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_least("num_draft_tokens", self.num_draft_tokens, 0)

    @property
    def promise(self) -> int:
        """Nodes that a request must be able to count on."""
        return self.num_draft_tokens

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """The same number at every step."""
        return [self.num_draft_tokens] * len(requests)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Until the budget is spent."""
        return True
