"""`best_alone` against the general way: the same levels, seconds and loss for the only request that drafts."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline.speculation import BatchStats, DraftStats, FixedPrices
from paceline.speculation.best_alone import best_alone
from paceline.speculation.best_draft import Offers, best_draft, loss_of_trying, worth_reading
from paceline.speculation.outcome import RequestOutcome


class Prices(FixedPrices):
    """With a price of each level, and of reading a text."""

    def __init__(self, row: float, dear: float, level: float, read: float) -> None:
        super().__init__(lambda rows, context: 1 + row * rows + dear * max(0, rows - 4) + 1e-4 * context)
        self._level, self._read = level, read

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        return self._level * (1 + 0.1 * num_requests + 0.01 * level)

    def reading(self, num_tokens: int) -> float:
        return self._read * num_tokens


@st.composite
def requests(draw) -> DraftStats:
    """One with a past of drafts that came or did not, and stood or fell."""
    request = DraftStats(num_unread=draw(st.integers(0, 300)), num_left=draw(st.integers(1, 200)))
    most = draw(st.sampled_from([0, 4]))
    for drafted in draw(st.lists(st.integers(0, most), max_size=12)):
        accepted = draw(st.integers(0, drafted))
        refused = accepted < drafted
        told = RequestOutcome(
            "r", num_new=accepted + 1, num_draft_tokens=drafted, depth=drafted, num_accepted=accepted, asked=True,
            level_rejected=refused,
        )  # fmt: skip
        request.learn(told)
    return request


def in_general(request: DraftStats, num_levels: int, whole: bool, prices: Prices, batch: BatchStats):
    offers = Offers.of([request], num_levels, whole)
    if prices.reading(1) and not whole:
        offers = offers.hopeful([request])
    assume((np.diff(offers.tokens[0] / offers.rows[0]) <= 0).all())  # else levels are not taken in their order
    choice = worth_reading(best_draft(offers, prices, batch), offers, [request], prices, batch)
    return choice, float(loss_of_trying(offers, choice, prices, batch)[0]) + prices.reading(request.num_unread)


@given(
    request=requests(), num_levels=st.integers(1, 8), whole=st.booleans(), row=st.floats(0.0, 0.3),
    dear=st.sampled_from([0.0, 0.2]), level=st.sampled_from([0.0, 0.05, 0.4]), read=st.sampled_from([0.0, 1e-3, 0.1]),
    decodes=st.integers(1, 3), prefill=st.sampled_from([0, 30]), context=st.sampled_from([0.0, 700.0]),
)  # fmt: skip
def test_who_is_alone_gets_what_the_general_way_gives(
    request, num_levels, whole, row, dear, level, read, decodes, prefill, context
):
    prices = Prices(row, dear, level, 0.0 if whole else read)
    batch = BatchStats(num_decodes=decodes, num_prefill_rows=prefill, mean_context=context)
    choice, loss = in_general(request, num_levels, whole, prices, batch)
    best = best_alone(request, num_levels, whole, prices, batch)
    assert best.levels == choice.levels[0]
    assert best.seconds == pytest.approx(choice.seconds)
    if not best.levels:
        assert best.loss == pytest.approx(loss, abs=1e-9)


def test_the_two_ways_draft_and_leave_drafts_in_these_cases():
    request, batch = DraftStats(num_left=100), BatchStats()
    assert best_alone(request, 8, False, Prices(0.01, 0.2, 0.0, 0.0), batch).levels == 3
    assert best_alone(request, 8, False, Prices(0.9, 0.2, 0.4, 0.0), batch).levels == 0
    unread = DraftStats(num_left=100, num_unread=10_000)
    assert best_alone(unread, 8, False, Prices(0.01, 0.2, 0.0, 0.1), batch).levels == 0
