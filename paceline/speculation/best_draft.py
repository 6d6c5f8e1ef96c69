"""`best_draft`: of what requests could draft, the part with the most expected tokens per second of all together.

The one optimiser: goodput is it over a batch, a hybrid's choice is it over one offer per child, and "do not draft" is
its empty answer. Liu et al. 2024 (SmartSpec) give every request of a batch the same length; Leviathan et al. 2023,
theorem 3.8, is the case of one request and an iid rate. Not for estimating tokens (`records.py`) or prices
(`prices.py`).

Beside rows of prompts, tokens are weighed against seconds at the rate of the best step without them. A prompt takes its
time whatever is drafted, so the rate of the mixed step itself would make drafts look the better, the longer the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import itemgetter

import numpy as np

from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats, DraftStats
from paceline.theory.round import Round, round_seconds

READING_MARGIN = 2.0
"""A text is read when that should save twice its price: expectations are uncertain, the price is not, and some of the
answer will be had for nothing."""
_chance = itemgetter(0)
_TIE = 1e-12  # a longer draft must win by more than float noise
_EACH, _POINTS = 40, 12  # up to 40 row counts are priced each; beyond, 12 of them and lines between


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """What requests could draft, level by level.

    Attributes:
        rows: [requests, levels] expected rows of each level of a draft.
        tokens: [requests, levels] expected tokens that each level brings.
    """

    rows: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, requests: Sequence[DraftStats], num_levels: int, whole: bool) -> "Offers":
        """By what became of each request's drafts; a whole draft is one level, with its average rows and tokens."""
        rates = [request.rates for request in requests]
        answer = np.array([one.answer for one in rates])[:, None]
        if whole:
            nodes = np.array([one.nodes_per_draft for one in rates])[:, None]
            return cls(answer * nodes, answer * np.array([one.accepted_per_draft for one in rates])[:, None])
        survival = np.array([one.survival(num_levels) for one in rates])
        return cls(np.broadcast_to(answer, survival.shape), answer * survival)

    def hopeful(self, requests: Sequence[DraftStats]) -> "Offers":
        """Where nothing was drafted yet, at least what is expected of a drafter that nobody knows.

        Requests differ, and one whose text was never read cannot show that its drafts are better than most.
        """
        new = np.array([not one.num_drafts for one in requests])[:, None]
        unknown = Offers.of([DraftStats()], self.tokens.shape[1], False)
        better = new & (self.tokens < unknown.tokens)
        return Offers(np.where(better, unknown.rows, self.rows), np.where(better, unknown.tokens, self.tokens))

    def without(self, places: np.ndarray) -> "Offers":
        """Nothing from those at `places`, [requests] bool."""
        keep = ~places[:, None]
        return Offers(self.rows * keep, self.tokens * keep)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Offers that are taken, and the step that they make.

    Attributes:
        levels: [requests] levels taken of each request's offer.
        rows, tokens, seconds: expected of the step.
        rate: tokens per second of the best step without rows of prompts, which is what a second is worth; the step's
            own where it has none.
    """

    levels: np.ndarray
    rows: float
    tokens: float
    seconds: float
    rate: float


def best_draft(offers: Offers, prices: Prices, batch: BatchStats) -> Choice:
    """The levels with the most expected tokens per second, the fewest rows on ties.

    Levels are taken in order of tokens per row, as many as make the rate of the step largest. Where requests share the
    price of draft steps, that is done for each depth of drafts.
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
    """How many nodes of each proposal to verify, the first that many, for the most expected tokens per second.

    Nodes of all requests are taken in order of their chances, as many as pay best, the fewest on ties: `best_draft`
    where proposals are known already and each node is an offer of its own. Lists, not arrays: a step has few nodes,
    and every one of its microseconds counts.

    Args:
        chances: per proposal, [nodes] that the node will be accepted, descending.

    Returns:
        The choice, whose `levels` are nodes.
    """
    nodes = [(chance, request) for request, one in enumerate(chances) for chance in one]
    nodes.sort(key=_chance, reverse=True)
    tokens = list(accumulate([chance for chance, _ in nodes], initial=float(batch.num_decodes)))
    first, size = batch.num_prefill_rows + batch.num_decodes, max(1, batch.num_decodes)
    seconds = _passes(range(first, first + len(tokens)), prices, batch.mean_context)
    alone = seconds
    if batch.num_prefill_rows:
        alone = _passes(range(size, size + len(tokens)), prices, batch.mean_context)
    taken, rate = best_prefix(tokens, seconds, alone)
    counts = np.zeros(len(chances), np.int64)
    for _, request in nodes[:taken]:
        counts[request] += 1
    return Choice(counts, float(first + taken), tokens[taken], seconds[taken], rate)


def best_prefix(tokens: Sequence[float], seconds: Sequence[float], alone: Sequence[float]) -> tuple[int, float]:
    """How many of some nodes or levels to take, the fewest on ties, and the rate at which seconds are weighed.

    Args:
        tokens, seconds: of the step with none, one, two ... of them.
        alone: seconds of the same step without rows of prompts.
    """
    rate = max([token / second for token, second in zip(tokens, alone, strict=True)])
    gains = [token - rate * second for token, second in zip(tokens, seconds, strict=True)]
    enough = max(gains) - _TIE * tokens[-1]
    return next(number for number, gain in enumerate(gains) if gain >= enough), rate


def worth_reading(
    choice: Choice, offers: Offers, requests: Sequence[DraftStats], prices: Prices, batch: BatchStats
) -> Choice:
    """`choice` but for the requests whose texts cost more to read, before the first draft, than their drafts save.

    Everybody waits while a text is read, and it is read once. What is saved in each of the steps to come is told by
    comparing with the best choice without all of these requests, and divided among them by their tokens.
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
    """A step in which every decoding request drafts `levels` levels and `nodes` nodes (as many, when left out)."""
    size = max(1, batch.num_decodes)
    drafted = size * (levels if nodes is None else nodes)
    return round_seconds(Round(size, drafted, levels, batch.mean_context, batch.num_prefill_rows), prices)


def loss_of_trying(offers: Offers, choice: Choice, prices: Prices, batch: BatchStats) -> np.ndarray:
    """[requests] seconds lost when a request's first level is drafted beside `choice` and brings what is expected."""
    context = batch.mean_context
    dearer = np.array([prices.target(choice.rows + rows, context) for rows in offers.rows[:, 0].tolist()])
    num_drafting = int((choice.levels > 0).sum())
    one_more = prices.draft_level(0, num_drafting + 1, context)
    one_more -= prices.draft_level(0, num_drafting, context) if num_drafting else 0.0
    dearer += one_more - prices.target(choice.rows, context)
    return np.maximum(0.0, dearer - offers.tokens[:, 0] / choice.rate)


@dataclass(frozen=True, slots=True, eq=False)
class _Prefixes:
    """Steps with the first 0, 1, 2, ... of some levels, in order of tokens per row.

    Attributes:
        request: [levels] whose each is.
        rows, tokens, seconds: [levels + 1] of the step.
        alone: [levels + 1] seconds of the same step without rows of prompts.
    """

    request: np.ndarray
    rows: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray
    alone: np.ndarray


def _down_to(depth: int, offers: Offers, prices: Prices, batch: BatchStats) -> _Prefixes:
    """Those of the levels no deeper than `depth`."""
    tokens, rows = offers.tokens[:, :depth].ravel(), offers.rows[:, :depth].ravel()
    order = np.argsort(-tokens / np.maximum(rows, _TIE), kind="stable")
    request, level = order // depth, order % depth
    decoded, context = batch.num_decodes + _running(rows[order]), batch.mean_context
    drafting = _drafting(level, offers, prices, context)
    alone = np.array(_passes(np.maximum(1, decoded).tolist(), prices, context)) + drafting
    all_rows, seconds = decoded, alone
    if batch.num_prefill_rows:
        all_rows = decoded + batch.num_prefill_rows
        seconds = np.array(_passes(all_rows.tolist(), prices, context)) + drafting
    return _Prefixes(request, all_rows, batch.num_decodes + _running(tokens[order]), seconds, alone)


def _passes(rows: Sequence[float], prices: Prices, context: float) -> list[float]:
    """Seconds of passes over ascending numbers of rows, by lines between whole numbers where these are many."""
    if len(rows) <= _EACH and type(rows) is range:
        return [prices.target(one, context) for one in rows]
    first, last = int(rows[0]), ceil(rows[-1])
    points = np.arange(first, last + 1)
    if len(points) > _EACH:
        points = np.linspace(first, last, _POINTS).round()
    return np.interp(rows, points, [prices.target(int(point), context) for point in points]).tolist()


def _drafting(level: np.ndarray, offers: Offers, prices: Prices, context: float) -> np.ndarray:
    """Seconds of drafting after none, one, two ... of the levels in `level`: requests share a draft step."""
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
    """0 and the running sums."""
    return np.concatenate(([0.0], np.cumsum(values)))
