import math
from fractions import Fraction as F

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory import (
    best_length,
    best_measured_length,
    can_gain,
    expected_tokens,
    guaranteed_speedup,
    measured_speedup,
    operations_factor,
    oracle_gain,
    oracle_speedup,
    oracle_tokens,
    round_yield,
    wall_time_factor,
    yield_speedup,
)

from .laws import rates

costs = st.fractions(0, 2, max_denominator=50)
lengths = st.integers(0, 10)


def test_exact_on_fractions():
    assert wall_time_factor(F(4, 5), 2, F(1, 10)) == F(61, 30)
    assert guaranteed_speedup(F(4, 5), F(1, 10)) == F(18, 11)
    assert operations_factor(F(1, 2), 1, F(1, 10)) == F(7, 5)
    assert oracle_speedup(F(1, 2), F(1, 5)) == F(5, 3)
    assert round_yield(F(1, 2), 1) == F(3, 4)


@given(rates, rates, lengths, costs)
def test_speedup_grows_with_acceptance_and_falls_with_cost(one, other, length, cost):
    low, high = sorted((one, other))
    assert wall_time_factor(low, length, cost) <= wall_time_factor(high, length, cost)
    assert wall_time_factor(low, length, cost + 1) <= wall_time_factor(low, length, cost)


@given(rates, costs)
def test_some_length_gains_exactly_when_alpha_exceeds_the_cost(alpha, cost):
    gains = [wall_time_factor(alpha, length, cost) > 1 for length in range(1, 12)]
    assert any(gains) == can_gain(alpha, cost) == gains[0]
    assert gains == sorted(gains, reverse=True)  # a length that gains leaves no shorter one that does not


@given(rates, costs)
def test_scan_finds_the_best_length(alpha, cost):
    best = best_length(alpha, cost, 12)
    factors = [wall_time_factor(alpha, length, cost) for length in range(13)]
    assert best.speedup == max(factors)
    assert best.num_draft_tokens == factors.index(max(factors))
    assert best.speedup >= max(1, guaranteed_speedup(alpha, cost))


def test_ties_go_to_the_shorter_length_in_floats_too():
    assert best_length(0.5, 0.2) == best_measured_length(0.5, lambda rows: 1.0, 0.2)
    assert best_length(0.5, 0.2).num_draft_tokens == 1
    for percent in range(5, 100, 5):
        alpha = F(percent, 100)
        tie = alpha**2 / (1 + alpha - alpha**2)  # one and two drafted tokens gain the same
        assert wall_time_factor(alpha, 1, tie) == wall_time_factor(alpha, 2, tie)
        assert best_length(float(alpha), float(tie)).num_draft_tokens == 1


def test_a_free_draft_has_no_best_length_but_the_last():
    assert best_length(0.9, 0, 20).num_draft_tokens == 20
    assert best_length(0.0, 0, 20) == (0, 1)


@given(rates, costs)
def test_oracle_beats_every_fixed_length(alpha, cost):
    assert oracle_speedup(alpha, cost) >= best_length(alpha, cost, 12).speedup


@given(rates.filter(lambda a: a < 1), st.fractions(0, 1, max_denominator=50))
def test_oracle_speedup_is_its_tokens_over_its_time(alpha, cost):
    drafted = oracle_tokens(alpha) - 1
    assert oracle_speedup(alpha, cost) == oracle_tokens(alpha) / (1 + cost * drafted)


def test_oracle_gain_stays_below_its_limit_and_comes_close():
    """Leviathan et al. put it at up to about 60 %; the limit is e / (e - 1) = 1.58."""
    gains = [oracle_gain(a / 50, c / 50) for a in range(50) for c in range(1, 51)]
    near = oracle_gain(0.992, 0.01, 400)
    assert max(gains) < near < math.e / (math.e - 1)
    assert near > 1.57


def test_oracle_gain_over_the_range_of_the_page():
    """docs/theory.md: between 5.6 and 53.5 % at alpha 0.5 to 0.9 and c 0.01 to 0.2."""
    gains = [oracle_gain(a / 100, c / 500) for a in range(50, 91) for c in range(5, 101, 5)]
    assert (round(min(gains), 3), round(max(gains), 3)) == (1.056, 1.535)


def test_oracle_at_the_ends():
    assert oracle_tokens(1) == math.inf
    assert oracle_speedup(1, 0) == math.inf
    assert oracle_speedup(F(1), F(1, 4)) == 4
    assert oracle_speedup(F(1, 2), 3) == 1


@given(rates, lengths, st.fractions(F(1, 50), 1, max_denominator=50))
def test_the_three_forms_agree(alpha, length, cost):
    closed = wall_time_factor(alpha, length, cost)
    assert yield_speedup(round_yield(alpha, length), length, cost, F(1)) == closed
    assert measured_speedup(expected_tokens(alpha, length), length, lambda rows: F(3), 3 * cost) == closed


def test_measured_form_charges_the_rows_of_the_verify_pass():
    times = {1: 10.0, 5: 12.0}
    assert measured_speedup(2.8, 4, times.__getitem__, 0.5) == pytest.approx(2.8 * 10 / (4 * 0.5 + 12))


def _batch(size):
    """A batch of `size`: a pass over n rows takes 1 + n / 100."""
    return lambda rows: 1 + 0.01 * size * rows


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.5, "1:3:1.591 4:2:1.492 8:2:1.410 16:2:1.285 32:1:1.172 64:1:1.056 128:0:1 256:0:1"),
        (0.7, "1:5:2.268 4:4:2.060 8:4:1.872 16:3:1.641 32:2:1.403 64:1:1.197 128:1:1.074 256:0:1"),
        (0.9, "1:8:4.152 4:8:3.620 8:8:3.121 16:7:2.512 32:5:1.951 64:4:1.526 128:2:1.251 256:2:1.099"),
    ],
)
def test_best_length_shrinks_as_the_batch_grows(alpha, expected):
    """Goodput of a batch with passes of 1 + n / 100, draft steps of 0.05 and at most 8 drafted tokens."""
    for size, length, speedup in (entry.split(":") for entry in expected.split()):
        best = best_measured_length(alpha, _batch(int(size)), 0.05, max_length=8)
        assert best.num_draft_tokens == int(length)
        assert best.speedup == pytest.approx(float(speedup), abs=5e-4)


@pytest.mark.parametrize(
    ("alpha", "cost", "utilities", "best"),
    [
        (0.3, 0.35, [1, 0.963, 0.818], 0),
        (0.5, 0.35, [1, 1.111, 1.029, 0.915], 1),
        (0.8, 0.35, [1, 1.333, 1.435, 1.440, 1.401], 3),
        (0.5, 0.2, [1, 1.25, 1.25, 1.172], 1),
    ],
)
def test_cascade_utilities(alpha, cost, utilities, best):
    assert [wall_time_factor(alpha, k, cost) for k in range(len(utilities))] == pytest.approx(utilities, abs=5e-4)
    assert best_length(alpha, cost).num_draft_tokens == best


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: wall_time_factor(0.5, 2, -0.1), "cost_ratio"),
        (lambda: wall_time_factor(0.5, -2, 0.1), "num_draft_tokens"),
        (lambda: best_length(0.5, 0.1, -1), "max_length"),
        (lambda: operations_factor(0.5, 2, float("inf")), "operations_ratio"),
        (lambda: oracle_tokens(1.5), "alpha"),
        (lambda: yield_speedup(4.0, 4, 1.8, 14.1), "tokens_per_slot"),
        (lambda: yield_speedup(0.8, 4, 1.8, 0.0), "target_time"),
        (lambda: measured_speedup(2.0, 2, lambda rows: 0.0), "pass_seconds"),
    ],
)
def test_bad_input_is_refused_by_name(call, field):
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert caught.value.field == field
