"""Acceptance records: moving rates of the drafts of one request, and of all requests together.

A policy sees these and draft laws, never a token just drawn. The user's counters are `paceline.types.RequestStats`.
"""

from dataclasses import dataclass, field

import numpy as np

from paceline.speculation.outcome import RequestOutcome

MEMORY = 0.85
"""Discount of the past in a request's moving rates, per draft (in SmartSpec the newest draft has weight 0.15)."""
ENGINE_MEMORY = 0.98
"""Discount per step in the moving rates of all requests of an engine together."""

PRIOR_RATE = 0.7
PRIOR_DRAFTS = 2.0
"""The prior: this many drafts of one token, with an acceptance rate of `PRIOR_RATE`."""
ENGINE_PRIOR_DRAFTS = 8.0
"""The prior's weight for an engine: a first request with failing drafts must not switch drafts off for later ones."""
_BORROWED = 4.0
"""Weight, in drafts, of the rate of the level above as prior of a level's rate. A request remembers about 7 drafts.
With a weight of 1, replays of recorded answers lose 1 % to noise; with a large one, drafters that are good at deep
levels are underrated."""
ESTIMATE_PRIOR, ESTIMATE_MEMORY = 8.0, 0.95
"""Prior of 8 tokens promised and accepted, and a memory of about 20 proposals."""
SAVING_MEMORY = 0.95
"""Memory of about 20 proposals for a request's savings: most save nothing, some a hundred times their cost."""
_SOON = 32
"""An answer of n tokens so far is expected to get this many plus n more."""
_LARGEST_UNIT = 1e100
"""Counts are rescaled when the unit exceeds this, every 1416 drafts of a request, so that they do not overflow."""


@dataclass(slots=True)
class DraftRates:
    """Moving acceptance rates of drafts, from discounted counts.

    Counts are discounted, not ratios: the mean of accepted / tested over drafts would be a biased estimate of alpha,
    because drafts that are accepted in full are tested at more levels. A level is one depth of a tree; it is rejected
    when all its siblings are. Instead of shrinking old counts at every draft, the unit of new counts grows.

    Attributes:
        asked, answered: drafts that were requested, and those that were not empty; discounted with every request.
        drafts, nodes: non-empty drafts and their nodes; like the following, discounted with every such draft.
        accepted, tested: by level, how often it was accepted and how often it was compared with the target.
        unit: weight of the newest draft in the last four.
    """

    asked: float = PRIOR_DRAFTS
    answered: float = PRIOR_DRAFTS
    drafts: float = PRIOR_DRAFTS
    nodes: float = PRIOR_DRAFTS
    accepted: list[float] = field(default_factory=lambda: [PRIOR_RATE * PRIOR_DRAFTS])
    tested: list[float] = field(default_factory=lambda: [PRIOR_DRAFTS])
    unit: float = 1.0

    @classmethod
    def of_engine(cls) -> "DraftRates":
        """The prior for the rates of all requests of an engine together."""
        weight = ENGINE_PRIOR_DRAFTS
        return cls(weight, weight, weight, weight, [PRIOR_RATE * weight], [weight])

    @property
    def acceptance(self) -> float:
        """alpha in [0, 1]: probability that a level is accepted given that those before it were, over all levels."""
        tested = sum(self.tested)
        return sum(self.accepted) / tested if tested else PRIOR_RATE

    @property
    def answer(self) -> float:
        """Probability, in [0, 1], that a requested draft is not empty."""
        return self.answered / self.asked

    @property
    def accepted_per_draft(self) -> float:
        """Accepted tokens per non-empty draft."""
        return sum(self.accepted) / self.drafts

    @property
    def nodes_per_draft(self) -> float:
        """Nodes per non-empty draft."""
        return self.nodes / self.drafts

    def rates(self, num_levels: int) -> list[float]:
        """[num_levels] conditional acceptance rate of each level; levels never reached have the last known rate."""
        rate, rates, borrowed = self.acceptance, [], _BORROWED * self.unit
        for accepted, tested in zip(self.accepted[:num_levels], self.tested, strict=False):
            rate = (accepted + borrowed * rate) / (tested + borrowed)
            rates.append(rate)
        return rates + [rate] * (num_levels - len(rates))

    def survival(self, num_levels: int) -> np.ndarray:
        """[num_levels] probability that a draft is accepted down to each level: the expected tokens of that level."""
        return np.cumprod(self.rates(num_levels))

    def learn(self, num_nodes: int, num_accepted: int, level_rejected: bool, *, memory: float = MEMORY) -> None:
        """Count one requested draft.

        Args:
            num_nodes: its nodes; 0 when the drafter proposed nothing.
            num_accepted: levels accepted before the first rejected one.
            level_rejected: whether a level was rejected.
            memory: discount of the past, in (0, 1].
        """
        self._count(1, bool(num_nodes), num_nodes, memory)
        if num_nodes:
            self._judge(num_accepted, level_rejected)

    def learn_step(self, outcomes: list[RequestOutcome], memory: float = ENGINE_MEMORY) -> None:
        """Count the drafts of a whole step."""
        asked = [one for one in outcomes if one.asked]
        if asked:
            drafts = [one for one in asked if one.num_draft_tokens]
            self._count(len(asked), len(drafts), sum([one.num_draft_tokens for one in drafts]), memory)
            for one in drafts:
                self._judge(one.num_accepted, one.level_rejected)

    def as_prior(self, weight: float = PRIOR_DRAFTS) -> "DraftRates":
        """The same rates with the weight of `weight` drafts, as the prior of a new request."""
        asked, drafts = weight / self.asked, weight / self.drafts
        return DraftRates(
            weight, self.answered * asked, weight, self.nodes * drafts,
            [one * drafts for one in self.accepted], [one * drafts for one in self.tested],
        )  # fmt: skip

    def _count(self, num_asked: int, num_drafts: int, num_nodes: int, memory: float) -> None:
        """Count requested drafts, and the non-empty ones among them; their levels are counted by `_judge`."""
        self.asked = memory * self.asked + num_asked
        self.answered = memory * self.answered + num_drafts
        if not num_drafts:
            return
        self.unit /= memory
        if self.unit > _LARGEST_UNIT:
            self._shrink()
        self.drafts += num_drafts * self.unit
        self.nodes += num_nodes * self.unit

    def _judge(self, num_accepted: int, level_rejected: bool) -> None:
        """Count the levels of a draft: `num_accepted` accepted ones and, if `level_rejected`, a rejected one."""
        unit, accepted, tested = self.unit, self.accepted, self.tested
        num_judged = num_accepted + level_rejected
        if num_judged > len(tested):
            missing = [0.0] * (num_judged - len(tested))
            accepted += missing
            tested += missing
        for level in range(num_accepted):
            accepted[level] += unit
        for level in range(num_judged):
            tested[level] += unit

    def _shrink(self) -> None:
        """Rescale the counts so that the unit is 1."""
        scale, self.unit = 1 / self.unit, 1.0
        self.drafts, self.nodes = self.drafts * scale, self.nodes * scale
        self.accepted = [one * scale for one in self.accepted]
        self.tested = [one * scale for one in self.tested]


@dataclass(slots=True)
class Estimates:
    """Record of a drafter's own estimates for one request.

    Attributes:
        promised, kept: moving sums of the tokens expected to be accepted and of those accepted.
        saving: moving sum of the estimated savings of proposals in seconds, of total weight 1 - `unknown`.
        unknown: remaining weight of the prior.
    """

    promised: float = ESTIMATE_PRIOR
    kept: float = ESTIMATE_PRIOR
    saving: float = 0.0
    unknown: float = 1.0

    @property
    def correction(self) -> float:
        """Factor on the drafter's estimates, at most 1: estimates that were too low may have been luck, and rows that
        are not worth verifying are expensive."""
        return min(1.0, self.kept / self.promised)

    def expected_saving(self, usual: float) -> float:
        """Expected saving of a proposal in seconds; `usual`, the mean over all requests, is the prior."""
        return self.saving + self.unknown * usual

    def weigh(self, saving: float) -> None:
        """Record a proposal's expected saving in seconds; 0 where no node was worth its row."""
        self.saving = SAVING_MEMORY * self.saving + (1 - SAVING_MEMORY) * saving
        self.unknown *= SAVING_MEMORY

    def learn(self, promised: float, kept: float) -> None:
        """Record that `promised` tokens were expected of a proposal (or its verified part), and `kept` accepted."""
        self.promised = _moved(self.promised, promised)
        self.kept = _moved(self.kept, kept)


def _moved(total: float, newest: float) -> float:
    """A moving sum that decays towards `ESTIMATE_PRIOR`."""
    return ESTIMATE_MEMORY * total + (1 - ESTIMATE_MEMORY) * ESTIMATE_PRIOR + newest


def tokens_to_come(num_said: int, most: int) -> int:
    """Expected remaining tokens of an answer of `num_said` tokens: `_SOON` + `num_said`, at most `most`."""
    return min(max(1, most), _SOON + num_said)


@dataclass(slots=True)
class DraftStats:
    """Record of one request's drafts.

    Attributes:
        rates: moving acceptance rates.
        num_drafts: target passes that verified at least one drafted token.
        last_budget: nodes that the policy wanted for the latest draft, before the step reduced them; None before the
            first draft.
        last_depth, last_accepted_tokens: levels of the latest draft, and its accepted tokens.
        steps_since_draft: decode steps since then; empty proposals do not reset it.
        steps_since_asked: decode steps since the drafter was last asked for a draft to verify.
        num_said, num_left: output tokens so far, and the largest number that may follow.
        num_unread: tokens since the latest draft, before the first one including the prompt. A drafter with its own KV
            cache has to compute them first.
        memory: discount of the past in the rates, per draft.
        estimates: record of the drafter's own estimates.
    """

    rates: DraftRates = field(default_factory=DraftRates)
    num_drafts: int = 0
    last_budget: int | None = None
    last_depth: int = 0
    last_accepted_tokens: int = 0
    steps_since_draft: int = 0
    steps_since_asked: int = 0
    num_said: int = 0
    num_left: int = 0
    num_unread: int = 0
    memory: float = MEMORY
    estimates: Estimates = field(default_factory=Estimates)

    @property
    def num_to_come(self) -> int:
        """Expected remaining tokens."""
        return tokens_to_come(self.num_said, self.num_left)

    def learn(self, outcome: RequestOutcome) -> None:
        """Count a decode step; the rates change only when the drafter was asked."""
        num_nodes = outcome.num_draft_tokens
        self.num_said += outcome.num_new
        self.num_left -= outcome.num_new
        self.num_unread = 0 if num_nodes else self.num_unread + outcome.num_new
        self.steps_since_asked = 0 if outcome.asked else self.steps_since_asked + 1
        if outcome.asked:
            self.rates.learn(num_nodes, outcome.num_accepted, outcome.level_rejected, memory=self.memory)
        if not num_nodes:
            self.steps_since_draft += 1
            return
        self.num_drafts += 1
        if outcome.promised:
            self.estimates.learn(outcome.promised, outcome.num_accepted)
        self.last_budget, self.last_depth = outcome.wanted, outcome.depth
        self.last_accepted_tokens = outcome.num_accepted
        self.steps_since_draft = 0


@dataclass(frozen=True, slots=True)
class BatchStats:
    """The step being planned, before drafts are added.

    Attributes:
        num_decodes: decoding requests, one row each without a draft.
        num_prefill_rows: rows of prefill chunks, if nothing is drafted.
        rows_left: rows available to all drafts together.
        mean_context: tokens in the cache before a decode's row, on average.
        is_full: a prompt takes all rows that drafts leave it, so each row of a draft displaces one of that prompt.
    """

    num_decodes: int = 1
    num_prefill_rows: int = 0
    rows_left: int = 0
    mean_context: float = 0.0
    is_full: bool = False


@dataclass(slots=True)
class PrefixStats:
    """Context of a draft in progress: the request's record, the batch, and the granted budget in nodes."""

    request: DraftStats
    batch: BatchStats
    budget: int
