"""`Goodput`: the drafts with the most expected tokens per second, by what a pass costs and what is accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from paceline.errors import InvalidParameter
from paceline.speculation.best_alone import best_alone
from paceline.speculation.best_draft import Choice, Offers, best_draft, loss_of_trying, step_seconds, worth_reading
from paceline.speculation.outcome import StepOutcome
from paceline.speculation.policies.base import DraftLaw, LengthPolicy, check_least, one_more_pays
from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats

_REQUESTS_PER_STEP = 16
_SOME_REQUESTS, _STEPS_TO_DECIDE = 4, 4
"""With at least 4 requests "nobody drafts" is kept for 4 steps whatever is learned: deciding is dear."""
_MEMORY = 0.1
"""What the latest step counts for in what steps without drafts take."""
_MEMORY_OF_TRIES = 0.2
"""What the latest try counts for in what tries take beyond their price."""
_STEPS_WITHOUT_DRAFTS = 8
"""Steps for which "nobody drafts" is kept unless something is learned of drafts meanwhile."""


@dataclass(slots=True, eq=False)
class _Kept:
    """An allocation that holds for some more steps of the same requests.

    Attributes:
        least_steps, most_steps: it holds for the former in any case, and for the latter while nothing is learned.
        num_asked: drafts that counted when it was made.
    """

    requests: list[DraftStats]
    num_prefill_rows: int
    budgets: list[int]
    seconds: float
    least_steps: int
    most_steps: int
    num_asked: float
    steps: int = 0

    def holds(self, requests: Sequence[DraftStats], batch: BatchStats) -> bool:
        """Whether it does, and one step more from now on."""
        self.steps += 1
        if self.num_prefill_rows != batch.num_prefill_rows or len(self.requests) != len(requests):
            return False
        if not all([a is b for a, b in zip(self.requests, requests, strict=True)]):
            return False
        return self.steps < self.least_steps or (
            self.steps < self.most_steps and self.num_asked == _num_asked(requests)
        )


def _num_asked(requests: Sequence[DraftStats]) -> float:
    return sum([request.rates.asked for request in requests])


@dataclass(slots=True, eq=False)
class Goodput(LengthPolicy):
    """The drafts with the most expected tokens per second of all requests together, none when none pay (SmartSpec, Liu
    et al. 2024): `best_draft` over a batch.

    A drafter that often has nothing to propose costs rows only when it has. Among many requests one draft changes
    little, so an allocation is kept for a step per 16 of them, and an empty one for 8 steps. A drafter with a model of
    its own reads a request's text before its first draft; where that costs more than it should save, it does not.

    Attributes:
        prices: of passes and drafts.
        max_length: longest draft considered.
        explore: share of the time that may be lost on drafts that are not expected to pay: without them the rates of a
            request whose drafts are switched off would never change again. Who has waited longest tries first.
        whole: drafts cannot be shortened without harm; each is taken, with the rows and tokens that it had on average,
            or left.
    """

    prices: Prices
    max_length: int = 8
    explore: float = 0.01
    whole: bool = False
    asks_beliefs: ClassVar[bool] = True
    _credit: float = field(default=0.0, init=False, repr=False)
    _kept: _Kept | None = field(default=None, init=False, repr=False)
    _trying: tuple[float, float] | None = field(default=None, init=False, repr=False)
    """Seconds that drafts and their rows should take of a step which drafts only to try; None of others."""
    _undrafted: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False)
    """Requests of the latest steps without drafts or prompts, and what such steps take besides drafting."""
    _beyond: float | None = field(default=None, init=False, repr=False)
    """What steps with a try usually took beyond these and their price; None before the first."""

    def __post_init__(self) -> None:
        check_least("max_length", self.max_length, 0)
        if not 0 <= self.explore < 1:
            raise InvalidParameter("explore", f"{self.explore} is not in [0, 1)", "give a share of the time, e.g. 0.01")

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """argmax of expected tokens / seconds over the best offers, the fewest rows on ties; and what is tried."""
        if not self.max_length or not requests:
            return [0] * len(requests)
        self._trying = None
        if self._kept and self._kept.holds(requests, batch):
            self._credit += self.explore * self._kept.seconds
            return self._kept.budgets
        if len(requests) == 1:
            return [self._alone(requests[0], batch)]
        offers, reads = Offers.of(requests, self.max_length, self.whole), self.prices.reading(1) > 0
        if reads and not self.whole:
            offers = offers.hopeful(requests)
        best = best_draft(offers, self.prices, batch)
        if reads:
            best = worth_reading(best, offers, requests, self.prices, batch)
        unit = self.max_length if self.whole else 1
        least = -(-len(requests) // _REQUESTS_PER_STEP)
        if not best.levels.any() and len(requests) >= _SOME_REQUESTS:
            least = max(least, _STEPS_TO_DECIDE)
        most = least if best.levels.any() else max(least, _STEPS_WITHOUT_DRAFTS)
        budgets = (best.levels * unit).tolist()
        asked = _num_asked(requests)
        self._kept = _Kept(list(requests), batch.num_prefill_rows, budgets, best.seconds, least, most, asked)
        self._credit += self.explore * best.seconds
        if self.explore and not best.levels.all():
            return self._with_a_try(best, offers, requests, batch, unit)
        return budgets

    def _alone(self, request: DraftStats, batch: BatchStats) -> int:
        """The budget of the only request that drafts: the same, decided faster."""
        best = best_alone(request, self.max_length, self.whole, self.prices, batch)
        unit, asked = self.max_length if self.whole else 1, request.rates.asked
        self._credit += self.explore * best.seconds
        if best.levels:
            self._kept = None
            return best.levels * unit
        self._kept = _Kept([request], batch.num_prefill_rows, [0], best.seconds, 1, _STEPS_WITHOUT_DRAFTS, asked)
        self._credit = min(self._credit, best.loss)
        if not self.explore or self._credit < best.loss:
            return 0
        self._credit -= best.loss
        self._trying = best.drafting, best.verifying
        return unit

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """While one more token raises tokens per second, where all requests draft alike; see `one_more_pays`."""
        if self.whole:
            return True
        drafted, batch = len(draft_laws), prefix.batch
        spent, more = (step_seconds(self.prices, batch, levels) for levels in (drafted, drafted + 1))
        return one_more_pays(draft_laws, prefix.request.rates.acceptance, spent, more)

    def observe(self, step: StepOutcome) -> None:
        """Take what trying took beyond its price off the credit.

        A head that rests is read from further away, and a device may have begun a step without drafts meanwhile, which
        was for nothing then. The latter is seen where steps of as many requests, none with a prompt, are known; single
        steps vary by more than a try costs, so it is what tries took on average.
        """
        trying, self._trying = self._trying, None
        if not step.is_complete:
            return
        size, (known, usual), seconds = len(step.requests), self._undrafted, step.seconds
        others = seconds.total - seconds.drafting
        if trying is not None:
            drafting, verifying = trying
            self._credit -= seconds.drafting - seconds.chosen - drafting
            if size == known and not step.num_prefill_rows:
                beyond = min(others - usual, usual) - verifying  # at most a step: any of them may be interrupted
                self._beyond = (
                    beyond if self._beyond is None else self._beyond + _MEMORY_OF_TRIES * (beyond - self._beyond)
                )
                self._credit -= max(0.0, self._beyond)
        if not step.num_prefill_rows and not any([outcome.num_draft_tokens for outcome in step.requests]):
            self._undrafted = size, usual + _MEMORY * (others - usual) if size == known else others

    def _with_a_try(
        self, best: Choice, offers: Offers, requests: Sequence[DraftStats], batch: BatchStats, unit: int
    ) -> list[int]:
        """The budgets with one level for those that have none, as far as the credit pays for what they may lose.

        Credit beyond what all of them could lose is given up: it would pay for a burst some day.
        """
        levels, loss = best.levels.copy(), loss_of_trying(offers, best, self.prices, batch)
        reading = np.array([self.prices.reading(request.num_unread) for request in requests])
        loss += reading
        idle = np.flatnonzero(levels == 0)
        waited = np.array([requests[place].steps_since_draft for place in idle.tolist()])
        queue = idle[np.argsort(-waited, kind="stable")]
        spent = np.cumsum(loss[queue])
        self._credit = min(self._credit, float(spent[-1]))
        tried = int(np.searchsorted(spent, self._credit, side="right"))
        if tried:
            levels[queue[:tried]] = 1
            self._credit -= float(spent[tried - 1])
            if not best.levels.any():
                context, rows = batch.mean_context, float(offers.rows[queue[:tried], 0].sum())
                drafting = self.prices.draft_level(0, tried, context) + float(reading[queue[:tried]].sum())
                verifying = self.prices.target(best.rows + rows, context) - self.prices.target(best.rows, context)
                self._trying = drafting, verifying
        return (levels * unit).tolist()
