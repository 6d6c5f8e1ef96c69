"""Intervals that cover what they should: checked on many simulated benches whose true ratio is known."""

import numpy as np
import pytest

from paceline.evaluation.bench.own_arms import bases_of
from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, run_bench
from paceline.evaluation.bench.summary import pairs_of
from paceline.evaluation.stats import TOO_UNEVEN, Pairs, holm, t_quantile, t_tail, time_ratio, typical_ratio
from tests.evaluation.bench.simulated import arms, cells


def intervals(arm: str, count: int, num_cells: int = 18, **machine):
    """The interval of `arm` in `count` simulated benches."""
    plan = Plan(cells(num_cells, families=3))
    for seed in range(count):
        some = arms(seed, **machine)
        file = BenchFile(None, {"arms": [each.label for each in some]})
        run_bench(some, plan, file)
        assert bases_of(some)[1] == {"plain": "plain (again)"}
        yield time_ratio(pairs_of(file.measurements, arm, "plain", decode=True))


def test_intervals_of_equal_arms_cover_1_in_95_percent():
    """500 comparisons of an arm with itself: 18 prompts in 3 families, jitter of 4 %."""
    rng = np.random.default_rng(1)
    ones, strata = np.ones(18), [str(i % 3) for i in range(18)]
    covered = []
    for _ in range(500):
        first, second = np.exp(0.04 * rng.standard_normal((2, 18)))
        interval = time_ratio(Pairs(first, ones, second, ones, strata))
        covered.append(interval.low <= 1 <= interval.high)
    assert 0.93 <= np.mean(covered) <= 0.97


def test_plain_against_itself_is_called_equal_on_a_machine_that_drifts():
    found = list(intervals("plain (again)", 60))
    assert np.mean([one.low <= 1 <= one.high for one in found]) >= 0.88
    assert np.mean([one.p < 0.05 for one in found]) <= 0.12


def test_few_prompts_widen_the_interval_as_they_should():
    covered = [one.low <= 1 <= one.high for one in intervals("plain (again)", 80, num_cells=7)]
    assert np.mean(covered) >= 0.89


def test_a_slowdown_of_3_percent_is_found():
    """Jitter of 3 % an answer: 60 prompts tell 0.97 from 1 in nine benches of ten."""
    found = list(intervals("fast", 12, num_cells=60, speedup=0.97))
    assert np.mean([one.high < 1 for one in found]) >= 0.9


def test_prompts_that_differ_are_what_makes_an_interval_wide():
    [alike] = intervals("fast", 1, speedup=1.5)
    [apart] = intervals("fast", 1, speedup=1.5, spread=0.5)
    assert apart.half_width > 3 * alike.half_width


def test_the_bill_and_the_typical_prompt_are_two_ratios():
    pairs = Pairs(np.array([1.0, 9.0]), np.ones(2), np.array([0.5, 9.0]), np.ones(2), ["a", "a"])
    assert time_ratio(pairs).ratio == pytest.approx(10 / 9.5)
    assert typical_ratio(pairs).ratio == pytest.approx(2**0.5)
    assert time_ratio(pairs).low is None, "two prompts give no interval"


def test_answers_of_other_lengths_are_compared_per_token():
    pairs = Pairs(np.array([1.0]), np.array([100.0]), np.array([1.0]), np.array([50.0]), ["a"])
    assert time_ratio(pairs).ratio == pytest.approx(0.5)


def test_students_t_by_the_tables():
    for freedom, quantile in ((5, 2.5706), (9, 2.2622), (30, 2.0423), (1, 12.706)):
        assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=2e-4)
        assert t_tail(quantile, freedom) == pytest.approx(0.05, rel=1e-3)


def test_a_stalled_answer_gives_no_interval_on_either_side():
    rng, ones = np.random.default_rng(3), np.ones(12)
    calm, stalled = np.exp(0.03 * rng.standard_normal((2, 12)))
    stalled[4] *= 300
    for first, second in ((calm, stalled), (stalled, calm)):
        found = time_ratio(Pairs(first, ones, second, ones, ["a"] * 12))
        assert (found.low, found.high, found.p, found.lacking) == (None, None, None, TOO_UNEVEN)
    assert time_ratio(Pairs(calm, ones, calm[::-1], ones, ["a"] * 12)).lacking is None


def test_the_interval_of_a_ratio_turned_over_is_the_interval_turned_over():
    rng, ones = np.random.default_rng(4), np.ones(12)
    first, second = np.exp(rng.standard_normal((2, 12)))
    found, turned = (time_ratio(Pairs(a, ones, b, ones, ["a"] * 12)) for a, b in ((first, second), (second, first)))
    assert (found.low, found.high) == pytest.approx((1 / turned.high, 1 / turned.low))


def test_intervals_that_are_given_among_stalls_cover_1_and_say_something():
    """1,000 comparisons of equal arms of which one answer in 16 takes 5 seconds and more in place of 1."""
    rng, ones, found = np.random.default_rng(5), np.ones(8), []
    for _ in range(1000):
        sides = np.exp(0.03 * rng.standard_normal((2, 8)))
        sides += (rng.random((2, 8)) < 1 / 16) * 5 / rng.random((2, 8))
        found.append(time_ratio(Pairs(sides[0], ones, sides[1], ones, ["a"] * 8)))
    given = [one for one in found if one.low is not None]
    assert len(given) > 500
    assert np.mean([one.low <= 1 <= one.high for one in given]) >= 0.93
    assert max(one.high / one.ratio for one in given) < 1000


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
