"""`best_draft`: draft lengths that maximise the expected tokens per second of a batch.

The only optimiser: the goodput policy applies it to a batch, and "do not draft" is its empty answer. In Liu et al. 2024
(SmartSpec) all requests of a batch have the same length; Leviathan et al. 2023, theorem 3.8, is the case of one request
with an iid acceptance rate. Not for estimating tokens (`records.py`) or prices (`prices.py`).

In a step with prefill rows, a second is valued at the rate (tokens per second) of the best step without these rows. A
prompt takes its time whatever is drafted, so the rate of the mixed step itself would favour drafts more, the longer the
prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import itemgetter

import numpy as np

from paceline.speculation.full_step import prices_alone
from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats, DraftStats
from paceline.theory.round import Round, round_seconds

READING_MARGIN = 2.0
"""The drafter prefills a text only when its drafts should save at least twice the cost: the saving is uncertain, the
cost is not."""
_chance = itemgetter(0)
_TIE = 1e-12  # a longer draft must win by more than float noise
_EACH, _POINTS = 40, 12  # up to 40 row counts are priced one by one; beyond, 12 are priced and the rest interpolated


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """Possible drafts of each request, level by level.

    Attributes:
        rows: [requests, levels] expected rows of each level of a draft.
        tokens: [requests, levels] expected accepted tokens of each level.
    """

    rows: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, requests: Sequence[DraftStats], num_levels: int, whole: bool) -> "Offers":
        """Offers from each request's acceptance rates; a `whole` draft is one level of average rows and tokens."""
        rates = [request.rates for request in requests]
        answer = np.array([one.answer for one in rates])[:, None]
        if whole:
            nodes = np.array([one.nodes_per_draft for one in rates])[:, None]
            return cls(answer * nodes, answer * np.array([one.accepted_per_draft for one in rates])[:, None])
        survival = np.array([one.rates(num_levels) for one in rates]).cumprod(axis=1)
        return cls(np.broadcast_to(answer, survival.shape), answer * survival)

    def hopeful(self, requests: Sequence[DraftStats]) -> "Offers":
        """For requests that have not drafted yet, raise the expected tokens to at least those of the prior.

        Requests differ: one that never drafted could not yet show that its drafts are better than those of others.
        """
        new = np.array([not one.num_drafts for one in requests])[:, None]
        unknown = Offers.of([DraftStats()], self.tokens.shape[1], False)
        better = new & (self.tokens < unknown.tokens)
        return Offers(np.where(better, unknown.rows, self.rows), np.where(better, unknown.tokens, self.tokens))

    def without(self, places: np.ndarray) -> "Offers":
        """The offers with those of `places` ([requests] bool) set to zero."""
        keep = ~places[:, None]
        return Offers(self.rows * keep, self.tokens * keep)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The chosen draft lengths, and the step that results.

    Attributes:
        levels: [requests] levels taken of each request's offer.
        rows, tokens, seconds: expected values for the step.
        rate: tokens per second of the best step without prefill rows; the value of a second in tokens.
    """

    levels: np.ndarray
    rows: float
    tokens: float
    seconds: float
    rate: float


def best_draft(offers: Offers, prices: Prices, batch: BatchStats) -> Choice:
    """The levels with the most expected tokens per second, the fewest rows on ties.

    Levels of all requests are sorted by tokens per row; the prefix that maximises the rate is taken. Where requests
    share draft steps of a model, this is done for each maximum depth and the best one is kept.
    """
    num_requests, deepest = offers.tokens.shape
    is_shared = num_requests > 1 and prices.draft_level(deepest - 1, 1, batch.mean_context) > 0
    depths = range(1 if is_shared else deepest, deepest + 1)
    prefixes = [_down_to(depth, offers, prices, batch) for depth in depths]
    rate = max([float((one.tokens / one.alone).max()) for one in prefixes])
    gains = [one.tokens - rate * one.seconds for one in prefixes]
    enough = max([gain.max() - _TIE * one.tokens[-1] for gain, one in zip(gains, prefixes, strict=True)])
    best, gain = next((one, gain) for one, gain in zip(prefixes, gains, strict=True) if gain.max() >= enough)
    taken = int(np.argmax(gain >= enough))
    counts = np.bincount(best.request[:taken], minlength=num_requests)
    return Choice(counts, float(best.rows[taken]), float(best.tokens[taken]), float(best.seconds[taken]), rate)


def worth_verifying(chances: Sequence[Sequence[float]], prices: Prices, batch: BatchStats) -> Choice:
    """Number of leading nodes of each proposal to verify, for the most expected tokens per second.

    Nodes of all requests are sorted by acceptance probability; the prefix that maximises the rate is taken, the
    shortest on ties. This is `best_draft` for known proposals, with each node an offer of its own. Lists instead of
    arrays are faster for the few nodes of a step.

    Args:
        chances: per proposal, [nodes] acceptance probability of each node, descending.

    Returns:
        The choice; its `levels` are numbers of nodes.
    """
    nodes = [(chance, request) for request, one in enumerate(chances) for chance in one]
    nodes.sort(key=_chance, reverse=True)
    tokens = list(accumulate([chance for chance, _ in nodes], initial=float(batch.num_decodes)))
    first, size = batch.num_prefill_rows + batch.num_decodes, max(1, batch.num_decodes)
    seconds = _passes(range(first, first + len(tokens)), prices, batch.mean_context)
    alone = seconds
    if batch.num_prefill_rows:
        alone = _passes(range(size, size + len(tokens)), prices_alone(prices), batch.mean_context)
    taken, rate = best_prefix(tokens, seconds, alone)
    counts = np.zeros(len(chances), np.int64)
    for _, request in nodes[:taken]:
        counts[request] += 1
    return Choice(counts, float(first + taken), tokens[taken], seconds[taken], rate)


def best_prefix(tokens: Sequence[float], seconds: Sequence[float], alone: Sequence[float]) -> tuple[int, float]:
    """(number of nodes or levels to take, the fewest on ties; the rate in tokens per second at which time is valued).

    Args:
        tokens, seconds: expected for the step with 0, 1, 2, ... of them.
        alone: seconds of the same steps without prefill rows.
    """
    rate = max([token / second for token, second in zip(tokens, alone, strict=True)])
    gains = [token - rate * second for token, second in zip(tokens, seconds, strict=True)]
    enough = max(gains) - _TIE * tokens[-1]
    return next(number for number, gain in enumerate(gains) if gain >= enough), rate


def worth_reading(
    choice: Choice, offers: Offers, requests: Sequence[DraftStats], prices: Prices, batch: BatchStats
) -> Choice:
    """`choice` without the requests for which the drafter's prefill would cost more than their drafts should save.

    The prefill delays all requests, and is paid once. The saving per step is the difference to the best choice without
    any request that needs a prefill, divided among these in proportion to their expected tokens.
    """
    reading = np.array([prices.reading(one.num_unread) for one in requests]) * (choice.levels > 0)
    unread = reading > 0
    if not unread.any():
        return choice
    others = best_draft(offers.without(unread), prices, batch)
    taken = np.arange(offers.tokens.shape[1]) < choice.levels[:, None]
    tokens = (offers.tokens * taken).sum(axis=1)
    saved = (choice.tokens / others.rate - choice.seconds) * tokens / max(tokens[unread].sum(), _TIE)
    steps = np.array([one.num_to_come for one in requests]) / (1 + tokens)
    dear = unread & (saved * steps <= READING_MARGIN * reading)
    if not dear.any():
        return choice
    return others if dear.sum() == unread.sum() else best_draft(offers.without(dear), prices, batch)


def step_seconds(prices: Prices, batch: BatchStats, levels: int, nodes: float | None = None) -> float:
    """Seconds of a step in which every decoding request drafts `levels` levels of `nodes` nodes (default `levels`)."""
    size = max(1, batch.num_decodes)
    drafted = size * (levels if nodes is None else nodes)
    return round_seconds(Round(size, drafted, levels, batch.mean_context, batch.num_prefill_rows), prices)


def loss_of_trying(offers: Offers, choice: Choice, prices: Prices, batch: BatchStats) -> np.ndarray:
    """[requests] expected seconds lost when a request's first level is drafted in addition to `choice`; at least 0."""
    context = batch.mean_context
    dearer = np.array([prices.target(choice.rows + rows, context) for rows in offers.rows[:, 0].tolist()])
    num_drafting = int((choice.levels > 0).sum())
    one_more = prices.draft_level(0, num_drafting + 1, context)
    one_more -= prices.draft_level(0, num_drafting, context) if num_drafting else 0.0
    dearer += one_more - prices.target(choice.rows, context)
    return np.maximum(0.0, dearer - offers.tokens[:, 0] / choice.rate)


@dataclass(frozen=True, slots=True, eq=False)
class _Prefixes:
    """Steps with the first 0, 1, 2, ... levels in descending order of tokens per row.

    Attributes:
        request: [levels] the request that each level belongs to.
        rows, tokens, seconds: [levels + 1] expected values for the step.
        alone: [levels + 1] seconds of the same step without prefill rows.
    """

    request: np.ndarray
    rows: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    alone: np.ndarray


def _down_to(depth: int, offers: Offers, prices: Prices, batch: BatchStats) -> _Prefixes:
    """The prefixes over the first `depth` levels of every request."""
    tokens, rows = offers.tokens[:, :depth].ravel(), offers.rows[:, :depth].ravel()
    order = np.argsort(-tokens / np.maximum(rows, _TIE), kind="stable")
    request, level = order // depth, order % depth
    decoded, context = batch.num_decodes + _running(rows[order]), batch.mean_context
    drafting = _drafting(level, offers, prices, context)
    alone = np.array(_passes(np.maximum(1, decoded).tolist(), prices_alone(prices), context)) + drafting
    all_rows, seconds = decoded, alone
    if batch.num_prefill_rows:
        all_rows = decoded + batch.num_prefill_rows
        seconds = np.array(_passes(all_rows.tolist(), prices, context)) + drafting
    return _Prefixes(request, all_rows, batch.num_decodes + _running(tokens[order]), seconds, alone)


def _passes(rows: Sequence[float], prices: Prices, context: float) -> list[float]:
    """Seconds of passes over ascending numbers of rows, interpolated where there are many or fractional ones."""
    if len(rows) <= _EACH and type(rows) is range:
        return [prices.target(one, context) for one in rows]
    first, last = int(rows[0]), ceil(rows[-1])
    points = np.arange(first, last + 1)
    if len(points) > _EACH:
        points = np.linspace(first, last, _POINTS).round()
    return np.interp(rows, points, [prices.target(int(point), context) for point in points]).tolist()


def _drafting(level: np.ndarray, offers: Offers, prices: Prices, context: float) -> np.ndarray:
    """Cumulative seconds of drafting the first 0, 1, 2, ... of the levels in `level`; requests share draft steps."""
    if not prices.draft_level(0, 1, context):
        return np.zeros(len(level) + 1)
    num_requests, num_levels = offers.tokens.shape
    steps = np.array([
        [0.0] + [prices.draft_level(depth, users, context) for users in range(1, num_requests + 1)]
        for depth in range(int(level.max()) + 1)
    ])  # fmt: skip
    users = (level[:, None] == np.arange(num_levels)).cumsum(axis=0)[np.arange(len(level)), level]
    return _running(steps[level, users] - steps[level, users - 1])


def _running(values: np.ndarray) -> np.ndarray:
    """Cumulative sums with a leading 0."""
    return np.concatenate(([0.0], np.cumsum(values)))
