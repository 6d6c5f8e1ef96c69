"""`Fixed`: the same length at every step."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.speculation.policies.base import LengthPolicy, check_least
from paceline.speculation.records import BatchStats, DraftStats


@dataclass(frozen=True, slots=True)
class Fixed(LengthPolicy):
    """Always `num_draft_tokens`; 0 is plain decoding."""

    num_draft_tokens: int

    def __post_init__(self) -> None:
        check_least("num_draft_tokens", self.num_draft_tokens, 0)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """The same number at every step."""
        return [self.num_draft_tokens] * len(requests)

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """Whether it drafts at all."""
        return self.num_draft_tokens > 0
