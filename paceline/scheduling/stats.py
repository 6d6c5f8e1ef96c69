"""What length policies know: small counters of one request's drafts and of the batch being filled.

A policy sees these and draft laws, never a token that was just drawn. Counters for the user are
`paceline.types.RequestStats`. Those made per request and step are not frozen, which would cost more than the rest.
"""

from dataclasses import dataclass, field

MEMORY = 0.85
"""Weight of the past in a moving acceptance rate, per verified draft (SmartSpec weighs the newest draft 0.15)."""

PRIOR_RATE = 0.7
PRIOR_TESTS = 2.0
"""Before anything was tested the rate counts as `PRIOR_RATE`, with the weight of this many tests."""


@dataclass(slots=True)
class AcceptanceRate:
    """A moving estimate of alpha: discounted counts of accepted and of tested levels.

    Counts are discounted, not ratios: the mean of accepted / tested over drafts is no estimate of alpha, because drafts
    that are accepted in full are tested more often. A level is one depth of a tree, refused when all siblings are.
    """

    accepted: float = PRIOR_RATE * PRIOR_TESTS
    tested: float = PRIOR_TESTS

    @property
    def value(self) -> float:
        """In [0, 1]."""
        return self.accepted / self.tested

    def after(self, num_accepted: int, num_rejected: int) -> "AcceptanceRate":
        """The estimate after one draft, or all drafts of a step: levels that stood, and levels that fell."""
        tested = num_accepted + num_rejected
        if not tested:
            return self
        return AcceptanceRate(MEMORY * self.accepted + num_accepted, MEMORY * self.tested + tested)


@dataclass(slots=True)
class DraftStats:
    """What became of one request's drafts.

    Attributes:
        rate: moving acceptance rate of this request.
        num_drafts: target passes that verified at least one drafted token.
        num_draft_tokens: nodes verified. num_accepted_tokens: drafted tokens committed.
        last_budget: nodes the policy wanted when the latest draft was verified (before the step's budget cut it), None
            before the first one.
        last_draft_tokens, last_accepted_tokens: of the latest draft.
        steps_since_draft: decode steps since then, drafts that came back empty included.
    """

    rate: AcceptanceRate = field(default_factory=AcceptanceRate)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    last_budget: int | None = None
    last_draft_tokens: int = 0
    last_accepted_tokens: int = 0
    steps_since_draft: int = 0

    def after(self, budget: int, num_draft_tokens: int, num_accepted: int, rejected: bool) -> "DraftStats":
        """The counters after a decode step in which the policy wanted `budget` and `num_draft_tokens` were verified."""
        if not num_draft_tokens:
            return DraftStats(
                self.rate, self.num_drafts, self.num_draft_tokens, self.num_accepted_tokens, self.last_budget,
                self.last_draft_tokens, self.last_accepted_tokens, self.steps_since_draft + 1,
            )  # fmt: skip
        return DraftStats(
            self.rate.after(num_accepted, rejected),
            self.num_drafts + 1,
            self.num_draft_tokens + num_draft_tokens,
            self.num_accepted_tokens + num_accepted,
            budget,
            num_draft_tokens,
            num_accepted,
        )


@dataclass(frozen=True, slots=True)
class BatchStats:
    """The step being filled, before drafts are added.

    Attributes:
        num_decodes: requests that decode, one row each without a draft.
        num_prefill_rows: rows of prefill chunks.
        rows_left: rows that drafts of all requests may take together.
        mean_context: tokens in the cache before a decode's row, on average.
    """

    num_decodes: int = 1
    num_prefill_rows: int = 0
    rows_left: int = 0
    mean_context: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """What is known while one draft grows: its request, its batch and the budget it was granted."""

    request: DraftStats
    batch: BatchStats
    budget: int
