"""Steps that a prompt fills: a draft's row is worth the time of the prompt's row that it displaces."""

import pytest

from paceline.speculation.best_alone import best_alone
from paceline.speculation.best_draft import Offers, best_draft, worth_verifying
from paceline.speculation.full_step import prices_alone, prices_in
from paceline.speculation.outcome import RequestOutcome, StepOutcome, StepSeconds
from paceline.speculation.prices import FixedPrices, LearnedPass, LearnedPrices
from paceline.speculation.records import BatchStats, DraftStats

PRICES = FixedPrices(lambda rows, _context: max(10.0, rows))
"""Reading the weights takes as long as the arithmetic of ten rows."""
FULL = BatchStats(num_decodes=4, num_prefill_rows=96, rows_left=96, is_full=True)


class Cheap(FixedPrices):
    """Rows of prompts cost `row` seconds, as they have no logits."""

    def __init__(self, row, target=lambda rows, _context: max(10.0, rows)):
        super().__init__(target)
        self.row = row

    def prompt_row(self):
        return self.row


@pytest.mark.parametrize("num_decodes", [4, 48, 80])
def test_a_row_costs_what_a_row_of_the_prompt_costs_whatever_decodes_beside_it(num_decodes):
    batch = BatchStats(num_decodes, 128 - num_decodes, is_full=True)
    prices = prices_in(batch, Cheap(0.5))
    assert prices.target(128) == PRICES.target(num_decodes) + 0.5 * (128 - num_decodes)
    assert prices.target(130) - prices.target(128) == pytest.approx(1.0)
    assert prices.target(num_decodes) == PRICES.target(num_decodes)


def test_other_steps_have_the_usual_prices():
    assert prices_in(BatchStats(4, 96), PRICES) is prices_alone(PRICES) is PRICES
    assert prices_in(BatchStats(4, 0, is_full=True), PRICES) is PRICES
    assert prices_alone(prices_in(FULL, PRICES)) is PRICES


@pytest.mark.parametrize(("row", "num_verified"), [(0.94, 2), (1.46, 1), (10.3, 0)])
def test_nodes_are_verified_while_they_save_more_than_the_prompt_loses(row, num_verified):
    """The best step without prompts makes 0.565 tokens a second, so these rows cost 0.53, 0.82 and 5.8 tokens."""
    prices = Cheap(row, lambda rows, _context: 10.0)
    choice = worth_verifying([[0.95, 0.6, 0.1]], prices_in(FULL, prices), FULL)
    assert choice.levels.tolist() == [num_verified]


def test_the_worth_of_a_second_is_that_of_steps_without_prompts():
    """Also where drafts alone would have as many rows as the full step: 16 requests with 8 levels are 144 rows."""
    batch, requests = BatchStats(16, 112, is_full=True), [DraftStats() for _ in range(16)]
    offers = Offers.of(requests, 8, False)
    prices = Cheap(0.1)
    full = best_draft(offers, prices_in(batch, prices), batch)
    assert full.rate == pytest.approx(best_draft(offers, prices, BatchStats(16)).rate)


def test_one_request_and_many_decide_alike_beside_prompts():
    batch = BatchStats(num_decodes=1, num_prefill_rows=99, rows_left=99, is_full=True)
    prices, request = prices_in(batch, PRICES), DraftStats()
    alone = best_alone(request, 8, False, prices, batch)
    [levels] = best_draft(Offers.of([request], 8, False), prices, batch).levels.tolist()
    assert alone.levels == levels and 0 < levels < 8
    assert alone.levels < best_alone(request, 8, False, PRICES, BatchStats(1)).levels


def beside(seconds, prompt_rows, **fields):
    return StepOutcome(
        [RequestOutcome("r", num_new=1)], prompt_rows, seconds=StepSeconds(verifying=seconds), prompt_rows=prompt_rows,
        **fields,
    )  # fmt: skip


def test_what_a_row_of_a_prompt_takes_is_learned_from_steps_that_prompts_fill():
    prices = LearnedPrices(LearnedPass(lambda rows, _context: float(rows)))
    prices.observe(beside(70.0, 99))
    assert prices.prompt_row() == 1.0, "the unit is not known before the first pass"
    for _ in range(8):
        prices.observe(StepOutcome([RequestOutcome("r", num_new=1)], seconds=StepSeconds(verifying=2.0)))
        prices.observe(beside(2.0 + 99 * 0.5, 99))
        prices.observe(beside(900.0, 99, is_complete=False))
        prices.observe(StepOutcome([RequestOutcome("r", num_new=1)], 60, seconds=StepSeconds(verifying=900.0)))
    assert prices.target(100) == pytest.approx(200.0)
    assert prices.prompt_row() == pytest.approx(0.5)
    assert FixedPrices(lambda rows, _context: 3 * rows).prompt_row() == pytest.approx(3.0)
