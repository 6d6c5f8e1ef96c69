"""The law of the number of passes: against enumeration, renewal theory, simulation, and the direction of Chen et al."""

from fractions import Fraction as F
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory import (
    Moments,
    accepted_count_law,
    expected_tokens,
    generation_time,
    passes_law,
    tokens_per_pass,
)
from paceline.theory.curves import CURVES
from paceline.theory.grid import Grid
from paceline.theory.tables import TABLES

from .laws import laws, rates


def enumerated(accepted: list[F], num_tokens: int) -> list[F]:
    """P(R = r): the weight of all sequences of r passes that reach `num_tokens` with their last one."""
    chances = [F(0)] * (num_tokens + 1)
    for count in range(1, num_tokens + 1):
        for counts in product(range(len(accepted)), repeat=count):
            emitted = sum(counts) + count
            if emitted >= num_tokens > emitted - counts[-1] - 1:
                chances[count] += prod(accepted[each] for each in counts)
    return chances


def test_a_fair_coin_by_hand():
    """1, 2 or 3 tokens with 1/2, 1/4, 1/4: three tokens take 1, 2 or 3 passes with 1/4, 1/2, 1/4."""
    accepted = accepted_count_law(F(1, 2), 2)
    assert tokens_per_pass(accepted) == Moments(F(7, 4), F(11, 16))
    assert list(passes_law(accepted, 3)) == [0, F(1, 4), F(1, 2), F(1, 4)]
    assert generation_time(accepted, 3, F(3, 2)) == Moments(F(3), F(9, 4) * F(1, 2))
    assert generation_time(accepted, 3, 2).deviation == pytest.approx(2 * 0.5**0.5)


@given(laws(3), st.integers(1, 5))
def test_the_law_is_what_enumeration_finds(accepted, num_tokens):
    found = passes_law(accepted, num_tokens)
    assert list(found) == enumerated(accepted, num_tokens)
    assert sum(found) == 1


def test_dropping_the_tokens_that_the_last_pass_emits_too_much_would_be_noticed():
    """Texts that must end exactly at N are fewer: the renewal probability is no first passage."""
    accepted = accepted_count_law(F(1, 2), 2)
    exact = [sum((prod(accepted[each] for each in counts) for counts in product(range(3), repeat=count)
                  if sum(counts) + count == 3), F(0)) for count in range(4)]  # fmt: skip
    assert exact != list(passes_law(accepted, 3))


@given(rates, st.integers(0, 6))
def test_the_mean_of_a_pass_is_the_closed_form(alpha, length):
    mean, variance = tokens_per_pass(accepted_count_law(alpha, length))
    assert mean == expected_tokens(alpha, length)
    assert variance >= 0
    if length == 1:
        assert variance == alpha * (1 - alpha)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_certain_passes_take_a_certain_time(alpha):
    time = generation_time(accepted_count_law(alpha, 3), 128, 1.3)
    assert time == (pytest.approx(1.3 * (128 if alpha == 0 else 32)), pytest.approx(0, abs=1e-9))
    assert time.deviation == pytest.approx(0, abs=1e-4)


@given(rates, st.integers(0, 5), st.integers(1, 30))
def test_the_mean_lies_between_the_bounds_of_wald(alpha, length, num_tokens):
    """N <= mu E[R] <= N + g: the tokens of all passes are N to N + g."""
    accepted = accepted_count_law(alpha, length)
    tokens = tokens_per_pass(accepted).mean * generation_time(accepted, num_tokens, 1).mean
    assert num_tokens <= tokens <= num_tokens + length


@pytest.mark.parametrize(("alpha", "length"), [(0.3, 2), (0.7, 4), (0.9, 8)])
def test_many_tokens_approach_renewal_theory(alpha, length):
    accepted, num_tokens = accepted_count_law(alpha, length), 4000
    mean, variance = tokens_per_pass(accepted)
    time = generation_time(accepted, num_tokens, 1.5)
    assert time.mean == pytest.approx(1.5 * num_tokens / mean, rel=5e-3)
    assert time.variance == pytest.approx(1.5**2 * num_tokens * variance / mean**3, rel=5e-3)


def test_simulated_answers_have_these_moments():
    accepted, num_answers = accepted_count_law(0.7, 4), 20_000
    emitted = np.random.default_rng(0).choice(np.arange(1, 6), size=(num_answers, 128), p=accepted).cumsum(axis=1)
    passes = (emitted < 128).sum(axis=1) + 1
    time = generation_time(accepted, 128, 1.0)
    assert passes.mean() == pytest.approx(time.mean, abs=4 * time.deviation / num_answers**0.5)
    assert passes.var() == pytest.approx(time.variance, rel=0.04)


@pytest.mark.parametrize("cost_ratio", [0.01, 0.05, 1.8 / 14.1])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_the_deviation_grows_with_the_length_even_where_the_mean_does(alpha, cost_ratio):
    """Chen et al. 2023, figure 1, left: 128 tokens; the mean falls and rises again, the spread only rises."""
    times = [generation_time(accepted_count_law(alpha, g), 128, g * cost_ratio + 1) for g in range(9)]
    deviations = [time.deviation for time in times]
    assert deviations[0] == 0
    assert deviations == sorted(set(deviations))
    assert cost_ratio < 0.1 or alpha == 0.9 or times[8].mean > min(time.mean for time in times)


def test_figures_of_the_page():
    times = [generation_time(accepted_count_law(0.7, g), 128, 0.1 * g + 1) for g in (1, 4, 8)]
    assert [(round(time.mean), round(time.deviation, 1)) for time in times] == [(83, 2.6), (65, 5.4), (73, 8.3)]


def test_table_and_plot_show_mean_and_deviation():
    grid = Grid(alphas=(0.7,), cost_ratios=(0.1,), max_length=4)
    [row] = TABLES["deviation"](grid).rows
    [curve] = CURVES["time"](grid).series
    assert curve.y[0] == 128 and row[:2] == (0.7, 0)
    assert curve.band is not None
    for (low, high), mean, deviation in zip(curve.band, curve.y, row[1:], strict=True):
        assert (low, high) == (mean - deviation, mean + deviation)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: passes_law([0.5, 0.4], 3), "accepted"),
        (lambda: passes_law([1.0], 0), "num_tokens"),
        (lambda: tokens_per_pass([]), "accepted"),
        (lambda: generation_time([1.0], 3, 0), "pass_time"),
    ],
)
def test_bad_input_is_refused_by_name(call, field):
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert caught.value.field == field
