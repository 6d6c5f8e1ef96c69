"""Lengths at constant prices: the best by the closed form, a request's own past only, losses within their share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling import Law
from paceline.scheduling import BatchStats, DraftStats, PrefixStats
from paceline.scheduling.length import Steady
from paceline.scheduling.stats import DraftRates
from paceline.theory.acceptance import expected_tokens


def at_rate(alpha, answer=1.0):
    return DraftStats(DraftRates(accepted=2 * alpha, tested=2.0, asked=2.0, answered=2 * answer))


def one_budget(policy, request, batch=None):
    [budget] = policy.budgets([request], batch or BatchStats())
    return budget


def by_the_closed_form(alpha, price, most):
    """The shortest length with the most tokens per price."""
    rates = [expected_tokens(alpha, length) / (1 + length * price) for length in range(most + 1)]
    return min(length for length, rate in enumerate(rates) if rate >= max(rates) - 1e-12)


@given(st.floats(0, 1), st.floats(0, 0.9), st.floats(0.001, 0.2), st.integers(1, 8))
def test_the_length_is_the_best_of_the_closed_form(alpha, draft_cost, row_cost, most):
    policy = Steady(most, draft_cost, row_cost, explore=0.0)
    best = by_the_closed_form(alpha, draft_cost + row_cost, most)
    assert policy.best_length(at_rate(alpha).rates) == best
    assert one_budget(policy, at_rate(alpha)) == (min(2 * best, most) if draft_cost else best)


def test_lookups_that_often_have_nothing_cost_rows_only_when_they_have():
    assert one_budget(Steady(explore=0.0), at_rate(0.5, answer=0.1)) >= one_budget(Steady(explore=0.0), at_rate(0.5))
    silent = at_rate(0.5, answer=0.1)
    assert one_budget(Steady(draft_cost=0.3, explore=0.0), silent) == 0


@given(st.floats(0, 1), st.integers(1, 64), st.integers(0, 500), st.floats(0, 9000))
def test_company_and_context_change_nothing(alpha, size, prefill, context):
    policy, batch = Steady(draft_cost=0.3), BatchStats(size, prefill, size, context)
    others = [at_rate(i / size) for i in range(size)]
    assert policy.budgets([*others, at_rate(alpha)], batch)[-1] == one_budget(policy, at_rate(alpha))


@pytest.mark.parametrize(("row_cost", "expected"), [(0.01, 8), (0.24, 8), (0.26, 0)])
def test_whole_drafts_are_taken_or_left(row_cost, expected):
    """Six nodes of which one and a half stand pay while a row costs less than a quarter of a pass."""
    wide = DraftStats(DraftRates(drafts=2.0, nodes=12.0, accepted=3.0, tested=4.0))
    assert one_budget(Steady(whole=True, row_cost=row_cost, explore=0.0), wide) == expected


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("draft_cost", [0.0, 0.3, 0.8])
def test_drafts_that_always_fail_lose_no_more_than_their_share(whole, draft_cost):
    policy, request, lost, tries = Steady(draft_cost=draft_cost, whole=whole), DraftStats(), 0.0, 0
    for step in range(3000):
        length = one_budget(policy, request)
        if step >= 100:
            lost += length * (draft_cost + policy.row_cost)
            tries += length > 0
        request.learn(length, length, 0, length > 0)
    one_try = (8 if whole else 1) * (draft_cost + policy.row_cost)
    assert lost <= policy.explore * 2900 + one_try
    assert tries >= 5


def test_a_drafter_that_recovers_is_found_out():
    policy, request = Steady(draft_cost=0.3), DraftStats()
    for _ in range(100):
        length = one_budget(policy, request)
        request.learn(length, length, 0, length > 0)
    assert one_budget(policy, request) <= 1
    for _ in range(300):
        length = one_budget(policy, request)
        request.learn(length, length, length, False)
    assert one_budget(policy, request) == 8


def test_a_draft_ends_where_its_drafter_is_unsure():
    """A token at 0.35 of a pass: 0.7 s (1 + 0.35 k) against 0.35 E."""
    prefix, flat = PrefixStats(at_rate(0.7), BatchStats(), 8), Law.from_dense(np.full(9, 1 / 9))
    policy = Steady(draft_cost=0.3)
    assert policy.keep_drafting(prefix, [Law.one_hot(1)] * 3)
    assert not policy.keep_drafting(prefix, [Law.one_hot(1), flat])
    assert Steady(whole=True, draft_cost=0.3).keep_drafting(prefix, [flat])
    assert not policy.keep_drafting(PrefixStats(at_rate(0.2), BatchStats(), 8), [Law.one_hot(1)])


def test_no_draft_is_longer_than_promised():
    assert Steady(max_length=5).promise == 5
    assert one_budget(Steady(max_length=0), DraftStats()) == 0
    assert one_budget(Steady(max_length=3, draft_cost=0.01), at_rate(1.0)) == 3


@pytest.mark.parametrize(
    ("field", "value"), [("max_length", -1), ("draft_cost", -0.1), ("row_cost", -0.1), ("explore", 1.0)]
)
def test_bad_values_are_named(field, value):
    with pytest.raises(InvalidParameter, match=field):
        Steady(**{field: value})
