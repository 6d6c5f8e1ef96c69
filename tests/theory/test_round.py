"""The price of a round: by hand, against the closed forms, and the same in every room that asks for it."""

from fractions import Fraction

import pytest

from paceline.errors import InvalidParameter
from paceline.speculation import BatchStats, CostProfile, FixedPrices
from paceline.speculation.best_draft import step_seconds
from paceline.theory import expected_tokens, measured_speedup, wall_time_factor
from paceline.theory.round import PlainPrices, Round, draft_seconds, round_seconds, speedup

PRICES = FixedPrices(lambda rows, context: 1 + rows / 10 + context / 100, lambda requests, context: requests / 5)


def test_a_round_is_its_pass_its_draft_steps_and_the_rest():
    one = Round(num_requests=2, num_nodes=6, levels=3, context=50, num_prefill_rows=12)
    assert one.num_rows == 20
    assert draft_seconds(one, PRICES) == pytest.approx(3 * 0.4)
    assert round_seconds(one, PRICES, overhead=0.25) == pytest.approx(1 + 2 + 0.5 + 1.2 + 0.25)


def test_half_a_level_costs_half_of_it():
    assert draft_seconds(Round(levels=2.5), PRICES) == pytest.approx(2.5 * 0.2)


def test_a_round_without_a_draft_is_plain_decoding():
    assert speedup(1, Round(4), PRICES) == 1


def test_a_verify_pass_at_the_price_of_a_plain_one_is_theorem_3_8():
    alpha, cost = Fraction(4, 5), Fraction(1, 10)
    prices = PlainPrices(lambda _rows, _context: Fraction(1), cost)  # type: ignore[arg-type]
    tokens = expected_tokens(alpha, 5)
    assert speedup(tokens, Round(1, 5, 5), prices) == wall_time_factor(alpha, 5, cost)
    assert measured_speedup(tokens, 5, lambda _rows: Fraction(1), cost) == wall_time_factor(alpha, 5, cost)


def test_policies_ask_for_the_same_price():
    curve = CostProfile({1: 1.0, 64: 3.0})
    prices = FixedPrices(curve, lambda requests, _context: requests / 4)
    batch = BatchStats(num_decodes=3, num_prefill_rows=10, mean_context=0)
    assert step_seconds(prices, batch, 2) == round_seconds(Round(3, 6, 2, 0, 10), prices)


def test_no_tokens_are_no_round():
    with pytest.raises(InvalidParameter, match="tokens_per_round"):
        speedup(0, Round(), PRICES)
