"""`Goodput`: the drafts with the most expected tokens per second, by what a pass costs and what is accepted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from paceline.errors import InvalidParameter
from paceline.scheduling.length.base import DraftLaw, check_least, one_more_pays
from paceline.scheduling.stats import BatchStats, DraftStats, PrefixStats

_TIE = 1e-12  # a longer draft must win by more than float noise
_REQUESTS_PER_STEP = 16
_EACH, _POINTS = 40, 12  # up to so many row counts are priced each; beyond, so many of them and lines between


def _free(_num_requests: int, _context: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Offers:
    """What requests could draft: expected rows of each level [requests], expected tokens per row [requests, levels]."""

    rows: np.ndarray
    gain: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """Offers that are taken: how many of each request, and the step that they make."""

    counts: np.ndarray
    rows: float
    tokens: float
    seconds: float

    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(slots=True, eq=False)
class _Kept:
    """An allocation that holds for some more steps of the same requests."""

    requests: list[DraftStats]
    num_prefill_rows: int
    budgets: list[int]
    steps_left: int

    def holds(self, requests: Sequence[DraftStats], batch: BatchStats) -> bool:
        """Whether it does, and one step less from now on."""
        self.steps_left -= 1
        same = self.num_prefill_rows == batch.num_prefill_rows and self.requests == requests
        return same and self.steps_left >= 0


@dataclass(slots=True, eq=False)
class Goodput:
    """The drafts with the most expected tokens per second of all requests together, none when none pay (Liu et al.
    2024, SmartSpec, who give every request of a batch the same length).

    Every token that any request could draft is an offer: so many rows, for so many tokens. Offers are taken in order of
    tokens per row, as many as make the step's tokens per second largest; where requests share the price of draft steps,
    for each depth of drafts. A drafter that often has nothing to propose costs rows only when it has. Among many
    requests one draft changes little, so an allocation is kept for a step per 16 of them.

    Attributes:
        pass_seconds: t(M, context), seconds of a target pass over M rows behind so many tokens, e.g. a `CostProfile`.
        draft_seconds: seconds of one draft step by the number of requests that draft and their context, or of a whole
            draft where drafts are `whole`; free for prompt lookup.
        max_length: longest draft considered.
        explore: share of the time that may be lost on drafts which do not promise to pay: without them the rates of a
            request whose drafts are switched off would never change again. Who has waited longest tries first.
        whole: drafts cannot be shortened without harm (trees, drafters that know best where to stop); each is taken,
            with the rows and tokens that it had on average, or left.
    """

    pass_seconds: Callable[[float, float], float]
    draft_seconds: Callable[[int, float], float] = _free
    max_length: int = 8
    explore: float = 0.005
    whole: bool = False
    asks_beliefs: ClassVar[bool] = True
    _credit: float = field(default=0.0, init=False, repr=False)
    _kept: _Kept | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_least("max_length", self.max_length, 0)
        if not 0 <= self.explore < 1:
            raise InvalidParameter(
                "explore", f"{self.explore} is not in [0, 1)", "give a share of the time, e.g. 0.005"
            )

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """argmax of expected tokens / seconds over the best offers, the fewest rows on ties; and what is tried."""
        if not self.max_length or not requests:
            return [0] * len(requests)
        if self._kept and self._kept.holds(requests, batch):
            return self._kept.budgets
        steps = -(-len(requests) // _REQUESTS_PER_STEP)
        offers, context = self._offers(requests), batch.mean_context
        best = max((self._best(offers, depth, batch) for depth in self._depths(offers, context)), key=_Taken.rate)
        unit = self.max_length if self.whole else 1
        self._kept = _Kept(list(requests), batch.num_prefill_rows, (best.counts * unit).tolist(), steps - 1)
        self._credit += self.explore * best.seconds * steps
        if self.explore and not best.counts.all():
            dearer = np.array([self.pass_seconds(best.rows + rows, context) for rows in offers.rows.tolist()])
            dearer += self._one_more(int((best.counts > 0).sum()), context) - self.pass_seconds(best.rows, context)
            loss = np.maximum(0.0, dearer - offers.rows * offers.gain[:, 0] / best.rate())
            self._explore(best.counts, loss, requests)
        return (best.counts * unit).tolist()

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """While one more token raises tokens per second, where all requests draft alike; see `one_more_pays`."""
        if self.whole:
            return True
        drafted = len(draft_laws)
        spent, more = self._seconds(prefix.batch, drafted), self._seconds(prefix.batch, drafted + 1)
        return one_more_pays(draft_laws, prefix.request.rates.acceptance, spent, more)

    def _offers(self, requests: Sequence[DraftStats]) -> "_Offers":
        rates = [request.rates for request in requests]
        answer = np.array([one.answer for one in rates])
        if self.whole:
            nodes = np.array([one.nodes / one.drafts for one in rates])
            return _Offers(answer * nodes, np.array([one.accepted / one.nodes for one in rates])[:, None])
        alpha = np.array([one.acceptance for one in rates])[:, None]
        return _Offers(answer, alpha ** np.arange(1, self.max_length + 1))

    def _depths(self, offers: "_Offers", context: float) -> range:
        """How deep drafts may go: all depths are compared where requests share the price of each."""
        num_requests, deepest = offers.gain.shape
        is_shared = num_requests > 1 and self.draft_seconds(1, context) > 0
        return range(1 if is_shared else deepest, deepest + 1)

    def _best(self, offers: "_Offers", depth: int, batch: BatchStats) -> "_Taken":
        """The best number of offers among those no deeper than `depth`."""
        gain = offers.gain[:, :depth].ravel()
        order = np.argsort(-gain, kind="stable")
        request, gain = order // depth, gain[order]
        rows = offers.rows[request]
        all_rows = batch.num_prefill_rows + batch.num_decodes + _running(rows)
        seconds = self._passes(all_rows, batch.mean_context) + self._drafting(order % depth, offers, batch.mean_context)
        tokens = batch.num_decodes + _running(rows * gain)
        rates = tokens / seconds
        taken = int(np.argmax(rates >= rates.max() * (1 - _TIE)))
        counts = np.bincount(request[:taken], minlength=len(offers.gain))
        return _Taken(counts, float(all_rows[taken]), float(tokens[taken]), float(seconds[taken]))

    def _passes(self, rows: np.ndarray, context: float) -> np.ndarray:
        """`pass_seconds` of ascending row counts, by lines between whole numbers where these are many."""
        first, last = int(rows[0]), int(np.ceil(rows[-1]))
        points = np.arange(first, last + 1)
        if len(points) > _EACH:
            points = np.linspace(first, last, _POINTS).round()
        return np.interp(rows, points, [self.pass_seconds(int(point), context) for point in points])

    def _drafting(self, level: np.ndarray, offers: "_Offers", context: float) -> np.ndarray:
        """Seconds of drafting after none, one, two ... of the offers: a draft step is shared by its users."""
        if not self.draft_seconds(1, context):
            return np.zeros(len(level) + 1)
        num_requests, num_levels = offers.gain.shape
        steps = np.array([0.0] + [self.draft_seconds(users, context) for users in range(1, num_requests + 1)])
        users = (level[:, None] == np.arange(num_levels)).cumsum(axis=0)[np.arange(len(level)), level]
        return _running(steps[users] - steps[users - 1])

    def _one_more(self, num_drafting: int, context: float) -> float:
        """Seconds of drafting for one more request."""
        before = self.draft_seconds(num_drafting, context) if num_drafting else 0.0
        return self.draft_seconds(num_drafting + 1, context) - before

    def _explore(self, counts: np.ndarray, loss: np.ndarray, requests: Sequence[DraftStats]) -> None:
        """Give a token, in place, to those that have none, as far as the credit pays for the seconds they may lose.

        Credit beyond what all of them could lose is given up: it would pay for a burst some day.
        """
        idle = np.flatnonzero(counts == 0)
        waited = np.array([requests[place].steps_since_draft for place in idle.tolist()])
        queue = idle[np.argsort(-waited, kind="stable")]
        spent = np.cumsum(loss[queue])
        self._credit = min(self._credit, float(spent[-1]))
        tried = int(np.searchsorted(spent, self._credit, side="right"))
        if tried:
            counts[queue[:tried]] = 1
            self._credit -= spent[tried - 1]

    def _seconds(self, batch: BatchStats, num_draft_tokens: int) -> float:
        size = max(1, batch.num_decodes)
        rows = batch.num_prefill_rows + size * (num_draft_tokens + 1)
        context = batch.mean_context
        return num_draft_tokens * self.draft_seconds(size, context) + self.pass_seconds(rows, context)


def _running(values: np.ndarray) -> np.ndarray:
    """0 and the running sums."""
    return np.concatenate(([0.0], np.cumsum(values)))
