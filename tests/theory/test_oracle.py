"""The oracle over seen runs: worked by hand, never beaten, and the closed form where rates are constant."""

import itertools

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.theory.oracle import best_fixed, oracle_lengths, rate_of
from paceline.theory.speedup import best_length, oracle_speedup


def step(length: int) -> float:
    return 1 + 0.3 * length


def test_rates_by_hand():
    assert rate_of([2, 0], [2, 0], step) == pytest.approx(4 / 2.6)
    assert rate_of([2, 0], [1, 1], step) == pytest.approx(3 / 2.6)
    assert oracle_lengths([2, 0], step, 4) == [2, 0]
    assert best_fixed([3, 3], step, 2) == (2, pytest.approx(3 / 1.6))


@pytest.mark.parametrize("runs", [(2, 0, 1), (3, 3, 0), (0, 0, 0), (1, 4, 2)])
def test_no_choice_of_lengths_beats_the_oracle(runs):
    most = 3
    every = max(rate_of(runs, lengths, step) for lengths in itertools.product(range(most + 1), repeat=len(runs)))
    assert rate_of(runs, oracle_lengths(runs, step, most), step) == pytest.approx(every)


def test_a_draft_that_costs_more_than_it_brings_is_not_made_even_by_an_oracle():
    assert oracle_lengths([5, 5], lambda length: 1 + 1.5 * length, 8) == [0, 0]


def test_constant_rates_give_the_closed_forms():
    rng, alpha, cost_ratio = np.random.default_rng(0), 0.7, 0.1
    runs = (rng.geometric(1 - alpha, 40_000) - 1).tolist()

    def seconds(length: int) -> float:
        return 1 + cost_ratio * length

    oracle = rate_of(runs, oracle_lengths(runs, seconds, 60), seconds)
    assert oracle == pytest.approx(oracle_speedup(alpha, cost_ratio), rel=0.01)
    assert best_fixed(runs, seconds, 12)[1] == pytest.approx(best_length(alpha, cost_ratio, 12).speedup, rel=0.01)


def test_lengths_must_match_runs():
    with pytest.raises(InvalidParameter, match="lengths"):
        rate_of([1, 2], [1], step)
