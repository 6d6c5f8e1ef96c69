"""`best_alone`: what `best_draft.py` decides for a batch, for the only request that drafts, in lists.

It is decided before every draft of a chat. Between passes, whose weights fill the caches, the general way takes 0.3
milliseconds, a tenth of a pass of the default model. The tests hold the two together.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from paceline.speculation.best_draft import READING_MARGIN, best_prefix
from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats, DraftStats


class Alone(NamedTuple):
    """What is best for a request that is the only one to draft.

    Attributes:
        levels: of its draft.
        seconds: expected of the step.
        loss: seconds lost should it draft one level and gain what is expected of that, its text read first.
        drafting, verifying: seconds that drafting one level, its text read first, and verifying it should take.
    """

    levels: int
    seconds: float
    loss: float
    drafting: float
    verifying: float


def best_alone(request: DraftStats, num_levels: int, whole: bool, prices: Prices, batch: BatchStats) -> Alone:
    """`best_draft`, `worth_reading` and `loss_of_trying` for one request, whose levels are taken in their order.

    Args:
        num_levels: of the longest draft; a `whole` one has one, with its average rows and tokens.
    """
    context, first = batch.mean_context, float(batch.num_decodes)
    rows, tokens = _levels(request, num_levels, whole, hopeful=not whole and prices.reading(1) > 0)
    rows, tokens = list(accumulate(rows, initial=first)), list(accumulate(tokens, initial=first))
    levels = [prices.draft_level(level, 1, context) for level in range(len(rows) - 1)]
    drafting = list(accumulate(levels, initial=0.0))
    alone = _seconds([max(1.0, one) for one in rows], drafting, prices, context)
    seconds, prefill = alone, batch.num_prefill_rows
    if prefill:
        seconds = _seconds([prefill + one for one in rows], drafting, prices, context)
    taken, rate = best_prefix(tokens, seconds, alone)
    reading = prices.reading(request.num_unread)
    if taken and reading:
        plain = tokens[0] / alone[0]
        saved = tokens[taken] / plain - seconds[taken]
        if saved * request.num_to_come <= READING_MARGIN * reading * (1 + tokens[taken] - first):
            taken, rate = 0, plain
    loss = seconds[1] - seconds[0] - (tokens[1] - first) / rate
    verifying = seconds[1] - seconds[0] - levels[0]
    return Alone(taken, seconds[taken], max(0.0, loss) + reading, levels[0] + reading, verifying)


def _levels(
    request: DraftStats, num_levels: int, whole: bool, hopeful: bool
) -> tuple[Sequence[float], Sequence[float]]:
    """Expected rows and tokens of each level, as `Offers.of` and `Offers.hopeful` have them."""
    rates, answer = request.rates, request.rates.answer
    if whole:
        return [answer * rates.nodes_per_draft], [answer * rates.accepted_per_draft]
    rows = [answer] * num_levels
    tokens = [answer * one for one in accumulate(rates.rates(num_levels), mul)]
    if not hopeful or request.num_drafts:
        return rows, tokens
    unknown_rows, unknown = _levels(DraftStats(), num_levels, False, hopeful=False)
    better = [one > own for own, one in zip(tokens, unknown, strict=True)]
    rows = [one if is_so else own for is_so, own, one in zip(better, rows, unknown_rows, strict=True)]
    return rows, list(map(max, tokens, unknown))


def _seconds(rows: Sequence[float], drafting: Sequence[float], prices: Prices, context: float) -> list[float]:
    """Of steps with passes over so many rows, on lines between whole numbers of them, and so much drafting."""
    seconds = []
    for number, spent in zip(rows, drafting, strict=True):
        whole = int(number)
        one, share = prices.target(whole, context), number - whole
        if share:
            one += share * (prices.target(whole + 1, context) - one)
        seconds.append(one + spent)
    return seconds
