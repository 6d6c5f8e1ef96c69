"""Steps that prompts fill: a draft's row is worth the time of the prompt's row that it displaces."""

import pytest

from paceline.speculation.best_alone import best_alone
from paceline.speculation.best_draft import Offers, best_draft, worth_verifying
from paceline.speculation.full_step import prices_in
from paceline.speculation.outcome import RequestOutcome, StepOutcome, StepSeconds
from paceline.speculation.prices import FixedPrices, LearnedPass, LearnedPrices
from paceline.speculation.records import BatchStats, DraftStats

PRICES = FixedPrices(lambda rows, _context: max(10.0, rows))
"""Reading the weights takes as long as the arithmetic of ten rows."""
FULL = BatchStats(num_decodes=4, num_prefill_rows=96, rows_left=96, is_full=True)


def test_a_row_costs_its_share_of_what_prompts_add_to_a_step():
    prices = prices_in(FULL, PRICES)
    assert prices.target(100) == 100.0
    assert prices.target(101) - prices.target(100) == pytest.approx((100 - 10) / 96)
    assert prices.target(4) == PRICES.target(4)


def test_other_steps_have_the_usual_prices():
    assert prices_in(BatchStats(4, 96), PRICES) is PRICES
    assert prices_in(BatchStats(4, 0, is_full=True), PRICES) is PRICES


def test_the_share_of_a_row_is_never_negative():
    odd = FixedPrices(lambda rows, _context: 10.0 if rows < 50 else 5.0)
    assert prices_in(FULL, odd).target(101) == 5.0


@pytest.mark.parametrize(("seconds_full", "num_verified"), [(100.0, 2), (150.0, 1), (1000.0, 0)])
def test_nodes_are_verified_while_they_save_more_than_prompts_lose(seconds_full, num_verified):
    """The best step without prompts makes 0.565 tokens a second, so these rows cost 0.53, 0.82 and 5.8 tokens."""
    prices = FixedPrices(lambda rows, _context: 10.0 if rows < 50 else seconds_full)
    choice = worth_verifying([[0.95, 0.6, 0.1]], prices_in(FULL, prices), FULL)
    assert choice.levels.tolist() == [num_verified]


def test_one_request_and_many_decide_alike_beside_prompts():
    batch = BatchStats(num_decodes=1, num_prefill_rows=99, rows_left=99, is_full=True)
    prices, request = prices_in(batch, PRICES), DraftStats()
    alone = best_alone(request, 8, False, prices, batch)
    [levels] = best_draft(Offers.of([request], 8, False), prices, batch).levels.tolist()
    assert alone.levels == levels and 0 < levels < 8
    assert alone.levels < best_alone(request, 8, False, PRICES, BatchStats(1)).levels


def test_what_a_full_pass_takes_is_learned_apart_from_passes_without_prompts():
    prices = LearnedPrices(LearnedPass(lambda rows, _context: float(rows)))
    decode = [RequestOutcome("r", num_new=1)]
    for _ in range(8):
        prices.observe(StepOutcome(decode, seconds=StepSeconds(verifying=2.0)))
        prices.observe(StepOutcome(decode, 60, seconds=StepSeconds(verifying=100.0), full_rows=100))
        prices.observe(StepOutcome(decode, 60, seconds=StepSeconds(verifying=900.0)))
        prices.observe(StepOutcome(decode, 60, seconds=StepSeconds(verifying=900.0), is_complete=False, full_rows=100))
    assert prices.target(100) == pytest.approx(200.0)
    assert prices.filled(100) == pytest.approx(100.0)
    assert FixedPrices(lambda rows, _context: rows).filled(7) == 7
