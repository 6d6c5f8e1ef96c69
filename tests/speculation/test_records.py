"""Rates of acceptance: what one draft teaches, level by level, and what is forgotten."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculation import BatchStats, DraftStats, Goodput, RequestOutcome
from paceline.speculation.records import PRIOR_DRAFTS, DraftRates
from tests.speculation.drafts import by_level, one_row_costs, verified


def draft_and_judge(rates: list[float], length: int, rng: np.random.Generator) -> RequestOutcome:
    """A chain of `length` tokens, of which number i stands with chance ``rates[i]`` when those before it did."""
    stood = rng.random(length) < rates[:length]
    return verified(length, int(np.argmin(np.append(stood, False))))


def learned(rates: list[float], num_drafts: int = 6000, memory: float = 0.999) -> DraftStats:
    """A request whose source of drafts was asked often."""
    rng, stats = np.random.default_rng(7), DraftStats(memory=memory)
    for _ in range(num_drafts):
        stats.learn(draft_and_judge(rates, len(rates), rng))
    return stats


def test_the_moving_rate_finds_alpha_where_the_mean_of_ratios_does_not():
    rng, alpha, length = np.random.default_rng(3), 0.6, 4
    rate, weighted, ratios = DraftRates(), [], []
    for _ in range(4000):
        accepted = draft_and_judge([alpha] * length, length, rng).num_accepted
        rate.learn(length, accepted, accepted < length)
        weighted.append([sum(counts) for counts in by_level(rate)])
        ratios.append(accepted / (accepted + (accepted < length)))
    pooled = sum(accepted for accepted, _ in weighted) / sum(tested for _, tested in weighted)
    assert pooled == pytest.approx(alpha, abs=0.02)
    assert abs(np.mean(ratios) - alpha) > 0.1


EASY_LATER, EASY_FIRST = [0.3] + [0.98] * 7, [0.95, 0.9] + [0.15] * 6
"""A first token that rarely stands with later ones that nearly always do (a lookup that found the right place or not),
and the opposite (a head that is good for two tokens)."""


@pytest.mark.parametrize("rates", [EASY_LATER, EASY_FIRST, [0.6] * 8])
def test_every_level_finds_its_own_rate(rates):
    stats = learned(rates)
    assert stats.rates.rates(8)[:5] == pytest.approx(rates[:5], abs=0.06)
    assert stats.rates.survival(8) == pytest.approx(np.cumprod(rates), abs=0.04)


@pytest.mark.parametrize("row", [0.02, 0.1, 0.25, 0.6])
@pytest.mark.parametrize("rates", [EASY_LATER, EASY_FIRST])
def test_goodput_takes_the_truly_best_length_of_a_source_with_two_phases(rates, row):
    """By trying every length on the true rates; one rate for all levels is right for none of these prices."""
    expected = 1 + np.append(0, np.cumsum(np.cumprod(rates)))
    truth = expected / (1 + row * (1 + np.arange(9)))
    policy, batch = Goodput(one_row_costs(row), explore=0.0), BatchStats()
    [length] = policy.budgets([learned(rates)], batch)
    assert truth[length] == pytest.approx(truth.max(), rel=0.01)


def test_one_rate_for_all_levels_would_choose_a_worse_length():
    """Why rates are kept by level: with the same drafts pooled, a good long draft is cut short."""
    stats = learned(EASY_LATER)
    pooled = DraftStats(rates=DraftRates(accepted=[stats.rates.acceptance], tested=[1.0]))
    [by_level] = Goodput(one_row_costs(0.1), explore=0.0).budgets([stats], BatchStats())
    [by_one] = Goodput(one_row_costs(0.1), explore=0.0).budgets([pooled], BatchStats())
    assert by_level == 8 and by_one < 6


def test_a_level_that_was_hardly_reached_borrows_from_the_one_above():
    rates = DraftRates(accepted=[90.0, 0.0], tested=[100.0, 0.0])
    first, second, third = rates.rates(3)
    assert first == second == third == pytest.approx(0.9)
    seen = [rates.rates(2)[1]]
    for _ in range(100):
        rates.learn(2, 1, True, memory=1.0)
        seen.append(rates.rates(2)[1])
    assert seen == sorted(seen, reverse=True) and 0.4 < seen[1] < 0.9, "one draft does not decide"
    assert seen[-1] < 0.1, "many do"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_rates_and_survival_stay_chances(drafts):
    rates = DraftRates()
    for nodes, accepted in drafts:
        rates.learn(nodes, min(nodes, accepted), accepted < nodes)
        survival = rates.survival(12)
        assert all(0 <= rate <= 1 for rate in rates.rates(12)) and 0 <= rates.answer <= 1
        assert np.all(np.diff(survival) <= 0)
        assert len(rates.accepted) == len(rates.tested)


def test_rates_tell_refused_drafts_from_empty_ones():
    empty, refused = DraftRates(), DraftRates()
    assert (empty.acceptance, empty.answer) == (pytest.approx(0.7), 1.0)
    empty.learn(0, 0, False)
    assert empty.acceptance == pytest.approx(0.7) and empty.answer < 1
    refused.learn(3, 0, True)
    assert refused.acceptance < 0.7 and refused.answer == 1.0


def test_a_step_without_room_says_nothing():
    stats = DraftStats()
    stats.learn(RequestOutcome("r", num_new=1, wanted=4))
    assert stats == DraftStats(steps_since_draft=1, steps_since_asked=1, num_said=1, num_left=-1, num_unread=1)
    stats.learn(verified(0, 0, wanted=4))
    assert stats.rates.answer < 1


def test_a_whole_step_counts_as_its_drafts_one_by_one_without_forgetting():
    outcomes = [verified(4, 2), verified(4, 4), verified(0, 0, wanted=4), RequestOutcome("silent", num_new=1)]
    together, alone = DraftRates(), DraftRates()
    together.learn_step(outcomes, memory=1.0)
    for one in outcomes[:3]:
        alone.learn(one.num_draft_tokens, one.num_accepted, one.level_rejected, memory=1.0)
    assert together == alone
    assert together.accepted == pytest.approx([1.4 + 2, 2, 1, 1]) and together.tested == pytest.approx([4, 2, 2, 1])


def test_a_step_is_forgotten_once_however_many_drafts_it_has():
    rates = DraftRates()
    rates.learn_step([verified(1, 1)] * 5, memory=0.5)
    assert rates.drafts / rates.unit == 0.5 * PRIOR_DRAFTS + 5
    assert by_level(rates) == ([0.5 * 1.4 + 5], [0.5 * 2 + 5])
    before = deepcopy(rates)
    rates.learn_step([RequestOutcome("silent", num_new=1)], memory=0.5)
    assert rates == before


def test_counts_by_a_growing_unit_are_the_discounted_sums_however_long_a_request_is():
    """Against the sums written out; the unit doubles 3000 times, three times what the exponent of a float holds."""
    rates, rng = DraftRates(), np.random.default_rng(5)
    drafts, nodes, accepted, tested = PRIOR_DRAFTS, PRIOR_DRAFTS, [1.4, 0.0, 0.0], [2.0, 0.0, 0.0]
    for _ in range(3000):
        num_accepted = int(rng.integers(0, 4))
        rates.learn(3, num_accepted, num_accepted < 3, memory=0.5)
        drafts, nodes = 0.5 * drafts + 1, 0.5 * nodes + 3
        accepted = [0.5 * one + (level < num_accepted) for level, one in enumerate(accepted)]
        tested = [0.5 * one + (level < num_accepted + 1) for level, one in enumerate(tested)]
    assert by_level(rates) == (pytest.approx(accepted), pytest.approx(tested))
    assert (rates.drafts / rates.unit, rates.nodes / rates.unit) == pytest.approx((drafts, nodes))
    assert rates.nodes_per_draft == pytest.approx(3) and 1 <= rates.unit < 1e101


def test_a_prior_keeps_the_rates_and_forgets_their_weight():
    rates = DraftRates()
    for _ in range(30):
        rates.learn_step([verified(8, 5)] * 2 + [verified(2, 1), verified(0, 0, wanted=8)])
    prior = rates.as_prior()
    assert prior.asked == prior.drafts == PRIOR_DRAFTS and prior.unit == 1
    for ratio in ("acceptance", "answer", "accepted_per_draft", "nodes_per_draft"):
        assert getattr(prior, ratio) == pytest.approx(getattr(rates, ratio))
    prior.learn(8, 0, True)
    assert prior.rates(1)[0] < 0.75 < rates.rates(1)[0]
