from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling.coupled import match_probability
from paceline.sampling.law import Law
from paceline.theory import (
    acceptance_rate,
    acceptance_rate_for,
    accepted_count_law,
    coupled_acceptance,
    coupled_acceptance_floor,
    estimate_acceptance_rate,
    expected_tokens,
    expected_tokens_by_position,
    lk_divergence,
    rejection_sampling_acceptance,
    total_variation,
)

from .laws import P, Q, laws, pairs, rates


def test_worked_pair_exactly():
    assert acceptance_rate(P, Q) == F(7, 10)
    assert total_variation(P, Q) == F(3, 10)
    assert rejection_sampling_acceptance(P, Q) == F(2, 5)
    assert coupled_acceptance(P, Q) == F(41, 65)
    assert coupled_acceptance_floor(P, Q) == F(7, 13)


def test_floats_of_any_width_give_the_same_numbers():
    p, q = (np.array([float(x) for x in law], dtype=np.float32) for law in (P, Q))
    assert acceptance_rate(p, q) == pytest.approx(0.7)
    assert coupled_acceptance(p, q) == pytest.approx(41 / 65)
    assert rejection_sampling_acceptance(p, q) == pytest.approx(0.4)


def test_rounding_of_narrow_floats_is_no_error():
    probs = np.full(151_936, 1 / 151_936, dtype=np.float16)
    assert float(probs.astype(np.float64).sum()) != 1
    assert acceptance_rate(probs, probs) == pytest.approx(1, abs=0.01)


@given(pairs())
def test_acceptance_is_one_minus_total_variation(pair):
    p, q = pair
    assert acceptance_rate(p, q) == 1 - total_variation(p, q) == 1 - lk_divergence(p, q)


@given(pairs())
def test_order_of_the_rules(pair):
    p, q = pair
    best = acceptance_rate(p, q)
    assert coupled_acceptance_floor(p, q) <= coupled_acceptance(p, q) <= best
    assert rejection_sampling_acceptance(p, q) <= best


@given(pairs(most=6))
def test_coupled_acceptance_agrees_with_its_fast_twin(pair):
    p, q = (np.array(law) for law in pair)
    assert coupled_acceptance(p, q) == match_probability(Law.from_dense(p), Law.from_dense(q))


@given(laws(4))
def test_equal_laws_accept_everything(law):
    assert acceptance_rate(law, law) == coupled_acceptance(law, law) == rejection_sampling_acceptance(law, law) == 1


def test_disjoint_laws_accept_nothing():
    p, q = [F(1), F(0)], [F(0), F(1)]
    assert acceptance_rate(p, q) == coupled_acceptance(p, q) == rejection_sampling_acceptance(p, q) == 0


@given(rates.filter(lambda a: a < 1), st.integers(0, 12))
def test_expected_tokens_is_the_closed_form_and_the_mean_of_the_count(alpha, length):
    tokens = expected_tokens(alpha, length)
    law = accepted_count_law(alpha, length)
    assert tokens == (1 - alpha ** (length + 1)) / (1 - alpha)
    assert law.sum() == 1
    assert tokens == 1 + sum(n * chance for n, chance in enumerate(law))
    assert tokens == expected_tokens_by_position([alpha] * length)


@pytest.mark.parametrize("one", [1, 1.0, F(1)])
def test_expected_tokens_when_all_are_accepted(one):
    assert expected_tokens(one, 7) == 8
    assert list(accepted_count_law(one, 3)) == [0, 0, 0, 1]


def test_expected_tokens_keeps_its_digits_near_one():
    alpha = F(1) - F(1, 10**9)
    assert expected_tokens(float(alpha), 4) == pytest.approx(float(expected_tokens(alpha, 4)), rel=1e-15)


def test_expected_tokens_by_position():
    assert expected_tokens_by_position([F(1, 2), F(1, 3)]) == 1 + F(1, 2) + F(1, 6)
    assert expected_tokens_by_position([]) == 1


@pytest.mark.parametrize(("tokens", "alpha"), [(1, 0.0), (4, 1.0)])
def test_the_ends_of_the_acceptance_rate_are_exact(tokens, alpha):
    assert acceptance_rate_for(tokens, 3) == alpha


@given(st.floats(0, 1), st.integers(1, 10))
def test_acceptance_rate_for_inverts_expected_tokens(alpha, length):
    tokens = expected_tokens(alpha, length)
    assert expected_tokens(acceptance_rate_for(tokens, length), length) == pytest.approx(tokens, abs=1e-9)


def test_estimator_leaves_untested_tokens_out():
    assert estimate_acceptance_rate(30, 10) == 0.75
    assert estimate_acceptance_rate(0, 0) is None


@given(st.floats(0.05, 0.95), st.integers(1, 8))
def test_accepted_over_drafted_is_too_low(alpha, length):
    """The expected counts of one pass give alpha by the estimator, and less when untested tokens are counted."""
    law = accepted_count_law(alpha, length)
    accepted = expected_tokens(alpha, length) - 1
    rejected = 1 - law[-1]
    assert accepted / (accepted + rejected) == pytest.approx(alpha)
    assert accepted / length <= alpha + 1e-12
    if length > 1:
        assert accepted / length < alpha


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: acceptance_rate([1.0], [0.5, 0.5]), "draft_probs"),
        (lambda: acceptance_rate([2.0, -1.0], [0.5, 0.5]), "target_probs"),
        (lambda: acceptance_rate([3.0, 1.0], [0.5, 0.5]), "target_probs"),
        (lambda: acceptance_rate([0.52, 0.5], [0.5, 0.5]), "target_probs"),
        (lambda: acceptance_rate([float("nan"), 1.0], [0.5, 0.5]), "target_probs"),
        (lambda: acceptance_rate(np.eye(2), np.eye(2)), "target_probs"),
        (lambda: expected_tokens(1.01, 3), "alpha"),
        (lambda: expected_tokens(float("nan"), 3), "alpha"),
        (lambda: expected_tokens(0.5, -1), "num_draft_tokens"),
        (lambda: accepted_count_law(-0.1, 2), "alpha"),
        (lambda: acceptance_rate_for(5.5, 4), "tokens_per_pass"),
        (lambda: acceptance_rate_for(1.0, 0), "num_draft_tokens"),
        (lambda: estimate_acceptance_rate(-1, 2), "num_accepted"),
    ],
)
def test_bad_input_is_refused_by_name(call, field):
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert caught.value.field == field
