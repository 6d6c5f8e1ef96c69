"""`Confidence`: stop drafting when the draft model's own confidence in the tokens so far is too low."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.speculation.policies.base import DraftLaw, LengthPolicy, check_least, check_share
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats


@dataclass(frozen=True, slots=True)
class Confidence(LengthPolicy):
    """Draft until the product of the draft's largest probabilities falls below `threshold`.

    The confidence stop of assisted generation (`assistant_confidence_threshold` of transformers), but computed from the
    largest probability instead of that of the drawn token, so the output keeps the target's law. Needs a drafter with
    laws; a lookup drafter always drafts `num_draft_tokens`.
    """

    num_draft_tokens: int = 8
    threshold: float = 0.4

    asks_beliefs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("num_draft_tokens", self.num_draft_tokens, 0)
        check_share("threshold", self.threshold)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Always `num_draft_tokens`."""
        return [self.num_draft_tokens] * len(requests)

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Whether the product of the largest draft probabilities is at least `threshold`."""
        survival = 1.0
        for law in draft_laws:
            survival *= float(law.probs.max())
        return survival >= self.threshold
