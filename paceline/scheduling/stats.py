"""What length policies know: small counters of one request's drafts and of the batch being filled.

A policy sees these and draft laws, never a token that was just drawn. Counters for the user are
`paceline.types.RequestStats`.
"""

from dataclasses import dataclass, field

MEMORY = 0.85
"""Weight of the past in the moving rates of a request, per draft (SmartSpec weighs the newest draft 0.15)."""
ENGINE_MEMORY = 0.98
"""The same, per step, for all requests of an engine together: what comes next is like many, not like the latest."""

PRIOR_RATE = 0.7
PRIOR_DRAFTS = 2.0
"""Before anything was drafted, so many drafts of one token count as seen, with an acceptance rate of `PRIOR_RATE`."""


@dataclass(slots=True)
class DraftRates:
    """Moving rates of drafts: discounted counts of what was asked for and what became of it.

    Counts are discounted, not ratios: the mean of accepted / tested over drafts is no estimate of alpha, because drafts
    that are accepted in full are tested more often. A level is one depth of a tree, refused when all siblings are.

    Attributes:
        asked, answered: drafts that were asked for, and those that were not empty; forgotten with every one asked for.
        drafts, nodes: drafts and their nodes; forgotten, like the rest, with every draft.
        accepted, tested: levels that stood, and levels that were compared with the target.
    """

    asked: float = PRIOR_DRAFTS
    answered: float = PRIOR_DRAFTS
    drafts: float = PRIOR_DRAFTS
    nodes: float = PRIOR_DRAFTS
    accepted: float = PRIOR_RATE * PRIOR_DRAFTS
    tested: float = PRIOR_DRAFTS

    @property
    def acceptance(self) -> float:
        """alpha: the chance, in [0, 1], that a level stands when those before it do."""
        return self.accepted / self.tested

    @property
    def answer(self) -> float:
        """The chance, in [0, 1], that a draft asked for is not empty."""
        return self.answered / self.asked

    def learn(
        self,
        num_nodes: int,
        num_accepted: int,
        num_rejected: int,
        num_asked: int = 1,
        num_drafts: int | None = None,
        memory: float = MEMORY,
    ) -> None:
        """One draft that was asked for, empty without nodes, or those of a whole step.

        Args:
            num_rejected: levels that fell.
            num_asked, num_drafts: how many drafts the other numbers are of; of one when left out.
        """
        if num_drafts is None:
            num_drafts = 1 if num_nodes else 0
        self.asked = memory * self.asked + num_asked
        self.answered = memory * self.answered + num_drafts
        if num_drafts:
            self.drafts = memory * self.drafts + num_drafts
            self.nodes = memory * self.nodes + num_nodes
            self.accepted = memory * self.accepted + num_accepted
            self.tested = memory * self.tested + num_accepted + num_rejected

    def as_prior(self, weight: float = PRIOR_DRAFTS) -> "DraftRates":
        """The same rates with the weight of so many drafts: where a new request begins."""
        asked, drafts = weight / self.asked, weight / self.drafts
        return DraftRates(
            weight, self.answered * asked, weight, self.nodes * drafts, self.accepted * drafts, self.tested * drafts
        )


@dataclass(slots=True)
class DraftStats:
    """What became of one request's drafts.

    Attributes:
        rates: of this request's latest drafts.
        num_drafts: target passes that verified at least one drafted token.
        num_draft_tokens: nodes verified. num_accepted_tokens: drafted tokens committed.
        last_budget: nodes the policy wanted when the latest draft was verified (before the step's budget cut it), None
            before the first one.
        last_draft_tokens, last_accepted_tokens: of the latest draft.
        steps_since_draft: decode steps since then, drafts that came back empty included.
        memory: weight of the past in the rates, per draft.
    """

    rates: DraftRates = field(default_factory=DraftRates)
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    last_budget: int | None = None
    last_draft_tokens: int = 0
    last_accepted_tokens: int = 0
    steps_since_draft: int = 0
    memory: float = MEMORY

    def learn(self, budget: int, num_draft_tokens: int, num_accepted: int, rejected: bool, asked: bool = True) -> None:
        """Count a decode step.

        Args:
            budget: what the policy wanted.
            num_draft_tokens: nodes verified.
            rejected: a level fell.
            asked: the drafter was asked; a step that had no room for drafts says nothing about them.
        """
        if budget and asked:
            self.rates.learn(num_draft_tokens, num_accepted, rejected, memory=self.memory)
        if not num_draft_tokens:
            self.steps_since_draft += 1
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted
        self.last_budget = budget
        self.last_draft_tokens = num_draft_tokens
        self.last_accepted_tokens = num_accepted
        self.steps_since_draft = 0


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
