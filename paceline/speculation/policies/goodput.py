"""`Goodput`: draft lengths that maximise the expected tokens per second, from pass costs and acceptance rates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

import numpy as np

from paceline.errors import InvalidParameter
from paceline.speculation.best_alone import best_alone
from paceline.speculation.best_draft import Choice, Offers, best_draft, loss_of_trying, step_seconds, worth_reading
from paceline.speculation.full_step import prices_in
from paceline.speculation.outcome import StepOutcome
from paceline.speculation.policies.base import DraftLaw, LengthPolicy, check_least, one_more_pays
from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats, DraftStats, PrefixStats

_REQUESTS_PER_STEP = 16
_DECIDING, _DECIDING_EACH, _DECIDING_SHARE = 2e-5, 6e-6, 0.01
"""Seconds that a decision takes, and more for each request (measured on an AMD EPYC of 2025), and the share of the time
of steps that decisions may take: where a device makes steps short, one is kept for several."""
_MOST_STEPS = 64
"""Most steps for which a decision is kept, as prices may be far too small before they are learned."""
_SOME_REQUESTS, _STEPS_TO_DECIDE = 4, 4
"""With at least 4 requests, the decision "no drafts" is kept for 4 steps in any case, because deciding takes time."""
_MEMORY = 0.1
"""Weight of the latest step in the moving average of the time of steps without drafts."""
_MEMORY_OF_TRIES = 0.2
"""Weight of the latest trial in the moving average of the excess time of trials."""
_STEPS_WITHOUT_DRAFTS = 8
"""Steps for which the decision "no drafts" is kept while no new draft outcomes arrive."""
_LONGEST_DEBT = 2000
"""Usual steps after which trials go on whatever the latest took: the first draft of a head may compile kernels, which
takes as long as hundreds of steps, once."""
_MOST_BEYOND = 2.0
"""Most usual steps that a step is counted to have taken beyond the usual one, as any may be interrupted."""


@dataclass(slots=True, eq=False)
class _Kept:
    """An allocation that is reused for some steps of the same requests.

    Attributes:
        least_steps, most_steps: it is valid for the former in any case, and for the latter while no draft is requested.
        num_asked: total of the requests' `DraftRates.asked` when it was made.
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
        """Count one step; whether the allocation is still valid for these requests and this batch.

        Among many requests one that comes or goes does not change that none should draft, for the least steps.
        """
        self.steps += 1
        if self.num_prefill_rows != batch.num_prefill_rows:
            return False
        if len(self.requests) != len(requests) or not all([a is b for a, b in zip(self.requests, requests)]):  # noqa: B905
            return self.is_empty and len(requests) >= _SOME_REQUESTS and self.steps < self.least_steps
        return self.steps < self.least_steps or (
            self.steps < self.most_steps and self.num_asked == _num_asked(requests)
        )

    @property
    def is_empty(self) -> bool:
        """Whether no request drafts."""
        return not any(self.budgets)


def _steps_to_keep(num_requests: int, seconds: float) -> int:
    """Steps of `seconds` for which a decision is kept, so that deciding takes no more than its share."""
    deciding = _DECIDING + num_requests * _DECIDING_EACH
    return min(_MOST_STEPS, max(1, ceil(deciding / max(_DECIDING_SHARE * seconds, 1e-12))))


def _num_asked(requests: Sequence[DraftStats]) -> float:
    return sum([request.rates.asked for request in requests])


@dataclass(slots=True, eq=False)
class Goodput(LengthPolicy):
    """Draft lengths that maximise the expected tokens per second of the batch, 0 where drafts do not pay: `best_draft`
    over a batch (SmartSpec, Liu et al. 2024).

    Empty proposals cost no rows, and the expected rows take that into account. With many requests one draft changes
    little, so an allocation is reused for one step per 16 requests, an empty one for up to 8 steps, and any for as many
    as make deciding cheap beside them. A drafter with its own model must prefill a request's text before its first
    draft; it does so only where that should pay.

    Attributes:
        prices: of passes and drafts.
        num_draft_tokens: longest draft considered.
        explore: share of the time that may be lost on trial drafts, which are not expected to pay. Without them, the
            rates of a request whose drafts are switched off would never change. The longest without a draft goes first.
        whole: drafts must not be shortened. Each is taken as a whole, with its average rows and tokens, or not at all.
    """

    prices: Prices
    num_draft_tokens: int = 8
    explore: float = 0.01
    whole: bool = False
    asks_beliefs: ClassVar[bool] = True
    _credit: float = field(default=0.0, init=False, repr=False)
    _kept: _Kept | None = field(default=None, init=False, repr=False)
    _trying: tuple[float, float] | None = field(default=None, init=False, repr=False)
    """Expected (drafting, verifying) seconds of the current step's trial drafts, if all its drafts are trials."""
    _undrafted: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False)
    """(number of requests, mean seconds without drafting) of the latest steps without drafts or prefill rows."""
    _beyond: float | None = field(default=None, init=False, repr=False)
    """Mean seconds that trials took beyond `_undrafted` and the expected price; None before the first."""
    _tried: float | None = field(default=None, init=False, repr=False)
    """Those of the latest step, if it had a trial; what the step after it takes beyond the usual is added."""

    def __post_init__(self) -> None:
        check_least("num_draft_tokens", self.num_draft_tokens, 0)
        if not 0 <= self.explore < 1:
            raise InvalidParameter("explore", f"{self.explore} is not in [0, 1)", "give a share of the time, e.g. 0.01")

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """The lengths that maximise expected tokens per second (fewest rows on ties), plus trial drafts on credit."""
        if not self.num_draft_tokens or not requests:
            return [0] * len(requests)
        self._trying = None
        if self._kept and self._kept.holds(requests, batch):
            self._credit += self.explore * self._kept.seconds
            return [0] * len(requests) if self._kept.is_empty else self._kept.budgets
        if len(requests) == 1:
            return [self._alone(requests[0], batch)]
        prices = prices_in(batch, self.prices)
        offers, reads = Offers.of(requests, self.num_draft_tokens, self.whole), prices.reading(1) > 0
        if reads and not self.whole:
            offers = offers.hopeful(requests)
        best = best_draft(offers, prices, batch)
        if reads:
            best = worth_reading(best, offers, requests, prices, batch)
        unit = self.num_draft_tokens if self.whole else 1
        least = max(-(-len(requests) // _REQUESTS_PER_STEP), _steps_to_keep(len(requests), best.seconds))
        if not best.levels.any() and len(requests) >= _SOME_REQUESTS:
            least = max(least, _STEPS_TO_DECIDE)
        most = least if best.levels.any() else max(least, _STEPS_WITHOUT_DRAFTS)
        budgets = (best.levels * unit).tolist()
        asked = _num_asked(requests)
        self._kept = _Kept(list(requests), batch.num_prefill_rows, budgets, best.seconds, least, most, asked)
        self._credit += self.explore * best.seconds
        if self.explore and not best.levels.all():
            return self._with_a_try(best, offers, requests, prices, batch, unit)
        return budgets

    def _alone(self, request: DraftStats, batch: BatchStats) -> int:
        """`budgets` for a single request, by the faster `best_alone`."""
        best = best_alone(request, self.num_draft_tokens, self.whole, prices_in(batch, self.prices), batch)
        unit, asked = self.num_draft_tokens if self.whole else 1, request.rates.asked
        self._credit += self.explore * best.seconds
        if best.levels:
            steps = _steps_to_keep(1, best.seconds)
            self._kept = _Kept(
                [request], batch.num_prefill_rows, [best.levels * unit], best.seconds, steps, steps, asked
            )
            return best.levels * unit
        self._kept = _Kept([request], batch.num_prefill_rows, [0], best.seconds, 1, _STEPS_WITHOUT_DRAFTS, asked)
        self._credit = min(self._credit, best.loss)
        if not self.explore or self._credit < best.loss:
            return 0
        self._credit -= best.loss
        self._trying = best.drafting, best.verifying
        return unit

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """Whether one more token raises tokens per second if all requests draft alike; see `one_more_pays`."""
        if self.whole:
            return True
        drafted, batch = len(draft_laws), prefix.batch
        prices = prices_in(batch, self.prices)
        spent, more = (step_seconds(prices, batch, levels) for levels in (drafted, drafted + 1))
        return one_more_pays(draft_laws, prefix.request.rates.acceptance, spent, more)

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """Whether the request would draft at once, if it decoded beside those that do."""
        if not self.num_draft_tokens:
            return False
        decoding = BatchStats(batch.num_decodes + 1, mean_context=batch.mean_context)
        return best_alone(request, self.num_draft_tokens, self.whole, self.prices, decoding).levels > 0

    def observe(self, step: StepOutcome) -> None:
        """Charge the credit with the time that a trial took beyond its expected price.

        A trial can cost more than its price: the weights of an idle draft head are no longer in the processor's cache,
        and a step that the device had begun ahead without drafts is wasted, while the step after it is not begun ahead.
        The excess of both is measured against steps of the same number of requests without drafts or prefill rows.
        Single steps vary by more than a trial costs, so the mean excess over trials is charged.
        """
        trying, self._trying = self._trying, None
        tried, self._tried = self._tried, None
        if not step.is_complete:
            return
        size, (known, usual), seconds = len(step.requests), self._undrafted, step.seconds
        others, drafts = seconds.total - seconds.drafting, any([one.num_draft_tokens for one in step.requests])
        is_alike = size == known and not step.num_prefill_rows
        beyond = min(others - usual, _MOST_BEYOND * usual) if is_alike else 0.0
        if tried is not None:
            self._charge(tried + (0.0 if drafts or trying else beyond))
        if trying is not None:
            drafting, verifying = trying
            self._credit -= seconds.drafting - seconds.chosen - drafting
            self._credit = max(self._credit, -self.explore * _LONGEST_DEBT * (usual or others))
            self._tried = beyond - verifying if is_alike else None
        if not (step.num_prefill_rows or drafts or tried is not None):
            self._undrafted = size, usual + _MEMORY * (others - usual) if size == known else others

    def _charge(self, beyond: float) -> None:
        """Charge the credit with the mean excess time of trials; that of the latest was `beyond` seconds."""
        self._beyond = beyond if self._beyond is None else self._beyond + _MEMORY_OF_TRIES * (beyond - self._beyond)
        self._credit -= max(0.0, self._beyond)

    def _with_a_try(
        self, best: Choice, offers: Offers, requests: Sequence[DraftStats], prices: Prices, batch: BatchStats,
        unit: int,
    ) -> list[int]:  # fmt: skip
        """The budgets, plus one level for requests without a draft as far as the credit covers the expected loss.

        Credit beyond the loss of trying all of them is dropped, so that it cannot pay for a burst of trials later.
        """
        levels, loss = best.levels.copy(), loss_of_trying(offers, best, prices, batch)
        reading = np.array([prices.reading(request.num_unread) for request in requests])
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
                drafting = prices.draft_level(0, tried, context) + float(reading[queue[:tried]].sum())
                verifying = prices.target(best.rows + rows, context) - prices.target(best.rows, context)
                self._trying = drafting, verifying
        return (levels * unit).tolist()
