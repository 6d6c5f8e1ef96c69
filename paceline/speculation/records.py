"""Records of acceptance: what became of the drafts of one request, and of all requests together.

A policy sees these and draft laws, never a token that was just drawn. Counters for the user are
`paceline.types.RequestStats`.
"""

from dataclasses import dataclass, field

import numpy as np

from paceline.speculation.outcome import RequestOutcome

MEMORY = 0.85
"""Weight of the past in the moving rates of a request, per draft (SmartSpec weighs the newest draft 0.15)."""
ENGINE_MEMORY = 0.98
"""The same, per step, for all requests of an engine together: they are many, so each says little about the next."""

PRIOR_RATE = 0.7
PRIOR_DRAFTS = 2.0
"""Before anything was drafted, this many drafts of one token count as seen, with an acceptance rate of `PRIOR_RATE`."""
ENGINE_PRIOR_DRAFTS = 8.0
"""The same for an engine: a first request whose drafts happen to fail must not switch them off for the next ones."""
_BORROWED = 4.0
"""Drafts for which the rate of the level above counts in the rate of a level. A request remembers about 7 drafts: with
1 the replay of recorded answers loses 1 per cent to noise, with many a drafter good in its later levels is missed."""
ESTIMATE_PRIOR, ESTIMATE_MEMORY = 8.0, 0.95
"""Estimates begin as if 8 tokens had been promised and accepted, and 20 proposals are remembered."""
SAVING_MEMORY = 0.95
"""What proposals for a request save is remembered for about 20 of them: most save nothing, some a hundred times their
price."""
_SOON = 32
"""Tokens that any answer is taken to have left; one of n tokens is expected to get n more."""
_LARGEST_UNIT = 1e100
"""Counts are rewritten in units of 1 before they overflow: every 1416 drafts of a request."""


@dataclass(slots=True)
class DraftRates:
    """Moving rates of drafts: discounted counts of what was asked for and what became of it.

    Counts are discounted, not ratios: the mean of accepted / tested over drafts is no estimate of alpha, because drafts
    that are accepted in full are tested more often. A level is one depth of a tree, refused when all siblings are.

    The past of whatever is forgotten with every draft is not made smaller; what is new counts for more.

    Attributes:
        asked, answered: drafts that were asked for, and those that were not empty; forgotten with every one asked for.
        drafts, nodes: drafts and their nodes; forgotten, like the rest, with every draft.
        accepted, tested: by level, levels that stood and levels that were compared with the target.
        unit: what the newest draft counts in these four.
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
        """Where the rates of all requests together begin."""
        weight = ENGINE_PRIOR_DRAFTS
        return cls(weight, weight, weight, weight, [PRIOR_RATE * weight], [weight])

    @property
    def acceptance(self) -> float:
        """alpha: the chance, in [0, 1], that a level stands when those before it do, all levels taken together."""
        tested = sum(self.tested)
        return sum(self.accepted) / tested if tested else PRIOR_RATE

    @property
    def answer(self) -> float:
        """The chance, in [0, 1], that a draft asked for is not empty."""
        return self.answered / self.asked

    @property
    def accepted_per_draft(self) -> float:
        """Tokens that stood, per draft."""
        return sum(self.accepted) / self.drafts

    @property
    def nodes_per_draft(self) -> float:
        """Nodes per draft."""
        return self.nodes / self.drafts

    def rates(self, num_levels: int) -> list[float]:
        """[num_levels] the chance that each level stands when those above it do; one never reached is as the last."""
        rate, rates, borrowed = self.acceptance, [], _BORROWED * self.unit
        for accepted, tested in zip(self.accepted[:num_levels], self.tested, strict=False):
            rate = (accepted + borrowed * rate) / (tested + borrowed)
            rates.append(rate)
        return rates + [rate] * (num_levels - len(rates))

    def survival(self, num_levels: int) -> np.ndarray:
        """[num_levels] the chance that a draft stands down to each level: the expected tokens of that level."""
        return np.cumprod(self.rates(num_levels))

    def learn(self, num_nodes: int, num_accepted: int, level_refused: bool, *, memory: float = MEMORY) -> None:
        """One draft: its nodes (none when the drafter had no answer) and the levels that stood before one fell.

        Args:
            memory: weight of the past, in (0, 1].
        """
        self._count(1, bool(num_nodes), num_nodes, memory)
        if num_nodes:
            self._judge(num_accepted, level_refused)

    def learn_step(self, outcomes: list[RequestOutcome], memory: float = ENGINE_MEMORY) -> None:
        """The drafts of a whole step."""
        asked = [one for one in outcomes if one.asked]
        if asked:
            drafts = [one for one in asked if one.num_draft_tokens]
            self._count(len(asked), len(drafts), sum([one.num_draft_tokens for one in drafts]), memory)
            for one in drafts:
                self._judge(one.num_accepted, one.level_refused)

    def as_prior(self, weight: float = PRIOR_DRAFTS) -> "DraftRates":
        """The same rates with the weight of `weight` drafts: where a new request begins."""
        asked, drafts = weight / self.asked, weight / self.drafts
        return DraftRates(
            weight, self.answered * asked, weight, self.nodes * drafts,
            [one * drafts for one in self.accepted], [one * drafts for one in self.tested],
        )  # fmt: skip

    def _count(self, num_asked: int, num_drafts: int, num_nodes: int, memory: float) -> None:
        """Drafts that were asked for, and those of them that were not empty, whose levels are judged next."""
        self.asked = memory * self.asked + num_asked
        self.answered = memory * self.answered + num_drafts
        if not num_drafts:
            return
        self.unit /= memory
        if self.unit > _LARGEST_UNIT:
            self._shrink()
        self.drafts += num_drafts * self.unit
        self.nodes += num_nodes * self.unit

    def _judge(self, num_accepted: int, level_refused: bool) -> None:
        """A draft of which `num_accepted` levels stood and, perhaps, the next one fell."""
        unit, accepted, tested = self.unit, self.accepted, self.tested
        num_judged = num_accepted + level_refused
        if num_judged > len(tested):
            missing = [0.0] * (num_judged - len(tested))
            accepted += missing
            tested += missing
        for level in range(num_accepted):
            accepted[level] += unit
        for level in range(num_judged):
            tested[level] += unit

    def _shrink(self) -> None:
        """The same counts in units of 1."""
        scale, self.unit = 1 / self.unit, 1.0
        self.drafts, self.nodes = self.drafts * scale, self.nodes * scale
        self.accepted = [one * scale for one in self.accepted]
        self.tested = [one * scale for one in self.tested]


@dataclass(slots=True)
class Estimates:
    """How a drafter's own estimates for one request turned out.

    Attributes:
        promised, kept: tokens that were expected to be accepted, and those that were; moving sums.
        saving, unknown: what proposals saved, as estimated, in a moving sum of weight 1 - `unknown`.
    """

    promised: float = ESTIMATE_PRIOR
    kept: float = ESTIMATE_PRIOR
    saving: float = 0.0
    unknown: float = 1.0

    @property
    def correction(self) -> float:
        """What an estimate is multiplied with. It is only lowered: a drafter that erred on the low side may have been
        lucky, and rows that are not worth verifying are dear."""
        return min(1.0, self.kept / self.promised)

    def expected_saving(self, usual: float) -> float:
        """Seconds that a proposal should save, where `usual` is saved by those of all requests."""
        return self.saving + self.unknown * usual

    def weigh(self, saving: float) -> None:
        """A proposal should save `saving` seconds, 0 where no node was worth its row."""
        self.saving = SAVING_MEMORY * self.saving + (1 - SAVING_MEMORY) * saving
        self.unknown *= SAVING_MEMORY

    def learn(self, promised: float, kept: float) -> None:
        """`promised` tokens were expected of a proposal, or of the part of it that could be judged."""
        self.promised = _moved(self.promised, promised)
        self.kept = _moved(self.kept, kept)


def _moved(total: float, newest: float) -> float:
    """A moving sum that draws back to where it began."""
    return ESTIMATE_MEMORY * total + (1 - ESTIMATE_MEMORY) * ESTIMATE_PRIOR + newest


def tokens_to_come(num_said: int, most: int) -> int:
    """Tokens expected after `num_said`, at most `most`: answers end early as often as not, and long ones later."""
    return min(max(1, most), _SOON + num_said)


@dataclass(slots=True)
class DraftStats:
    """What became of one request's drafts.

    Attributes:
        rates: of this request's latest drafts.
        num_drafts: target passes that verified at least one drafted token.
        last_budget: nodes the policy wanted when the latest draft was verified (before the step's budget cut it), None
            before the first one.
        last_depth, last_accepted_tokens: levels of the latest draft, and how many stood.
        steps_since_draft: decode steps since then, drafts that came back empty included.
        steps_since_asked: decode steps since the drafter was last asked for a draft to verify.
        num_said, num_left: tokens of the answer so far, and most that may still come.
        num_unread: tokens since the latest draft, the prompt too before the first: a drafter with keys and values of
            its own has to read them.
        memory: weight of the past in the rates, per draft.
        estimates: of its drafter, where it makes some.
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
        """Tokens that are expected to come."""
        return tokens_to_come(self.num_said, self.num_left)

    def learn(self, outcome: RequestOutcome) -> None:
        """Count a decode step. One in which the drafter was not asked says nothing about its drafts."""
        num_nodes = outcome.num_draft_tokens
        self.num_said += outcome.num_new
        self.num_left -= outcome.num_new
        self.num_unread = 0 if num_nodes else self.num_unread + outcome.num_new
        self.steps_since_asked = 0 if outcome.asked else self.steps_since_asked + 1
        if outcome.asked:
            self.rates.learn(num_nodes, outcome.num_accepted, outcome.level_refused, memory=self.memory)
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
    """What is known while one draft grows: its request, its batch and the levels it was granted."""

    request: DraftStats
    batch: BatchStats
    budget: int
