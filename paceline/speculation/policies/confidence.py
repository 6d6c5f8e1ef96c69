"""`Confidence`: stop when the draft itself no longer believes that all of its tokens stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.speculation.policies.base import DraftLaw, LengthPolicy, check_least, check_share
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats


@dataclass(frozen=True, slots=True)
class Confidence(LengthPolicy):
    """Draft until the product of the draft's largest probabilities falls below `threshold`.

    The confidence stop of assisted generation (`assistant_confidence_threshold` of transformers), with laws in place of
    drawn tokens: what was drawn is never asked, so the text keeps its law. Needs a drafter that has laws; prompt lookup
    drafts `max_length`.
    """

    max_length: int = 8
    threshold: float = 0.4

    asks_beliefs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("max_length", self.max_length, 0)
        check_share("threshold", self.threshold)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Always `max_length`."""
        return [self.max_length] * len(requests)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """While all tokens so far stand with at least `threshold`, by the draft's own account."""
        survival = 1.0
        for law in draft_laws:
            survival *= float(law.probs.max())
        return survival >= self.threshold
