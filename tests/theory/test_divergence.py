import math
from fractions import Fraction as F

import pytest
from hypothesis import given

from paceline.errors import InvalidParameter
from paceline.theory import acceptance_floor, acceptance_rate, jensen_shannon, kl, lk_divergence, total_variation

from .laws import P, Q, pairs


def test_worked_pair():
    assert total_variation(P, Q) == lk_divergence(P, Q) == F(3, 10)
    assert kl(P, Q) == pytest.approx(0.3 * math.log(2.5)) == pytest.approx(0.274887, abs=1e-6)
    assert kl(Q, P) == pytest.approx(kl(P, Q))
    assert jensen_shannon(P, Q) == pytest.approx(0.066414, abs=1e-6)
    assert 1 - acceptance_floor(kl(P, Q)) <= math.sqrt(kl(P, Q) / 2) == pytest.approx(0.3707, abs=5e-5)


def test_directions_of_kl_differ():
    p, q = [0.5, 0.5, 0.0], [0.4, 0.4, 0.2]
    assert kl(p, q) == pytest.approx(math.log(1.25))
    assert kl(q, p) == math.inf


def test_jensen_shannon_limits():
    disjoint = ([1.0, 0.0], [0.0, 1.0])
    assert jensen_shannon(*disjoint) == pytest.approx(math.log(2))
    assert jensen_shannon(P, Q, 0) == jensen_shannon(P, Q, 1) == 0
    assert jensen_shannon(P, Q, 1e-6) / 1e-6 == pytest.approx(kl(P, Q), rel=1e-3)  # rescaled, it tends to KL(p || q)


@given(pairs())
def test_divergences_are_symmetric_where_they_should_be_and_zero_only_for_equal_laws(pair):
    p, q = pair
    assert total_variation(p, q) == total_variation(q, p) == lk_divergence(p, q)
    assert jensen_shannon(p, q) == pytest.approx(jensen_shannon(q, p), abs=1e-12)
    assert (total_variation(p, q) == 0) == (p == q)
    assert (kl(p, q) > 1e-12) == (p != q)


@given(pairs())
def test_acceptance_never_falls_below_the_floor(pair):
    p, q = pair
    accepted = float(acceptance_rate(p, q))
    for divergence in (kl(p, q), kl(q, p)):
        assert acceptance_floor(max(divergence, 0.0)) <= accepted + 1e-12


def test_floor_at_the_ends():
    assert acceptance_floor(0) == 1
    assert acceptance_floor(math.inf) == 0
    assert 0 < acceptance_floor(5.0) < 0.01  # Pinsker alone would say nothing here


def test_bad_input_is_refused_by_name():
    with pytest.raises(InvalidParameter, match="weight"):
        jensen_shannon(P, Q, 1.5)
    with pytest.raises(InvalidParameter, match="kl_nats"):
        acceptance_floor(-0.1)
