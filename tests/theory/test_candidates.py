from fractions import Fraction as F
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory import (
    acceptance_rate,
    distinct_acceptance,
    expected_tokens,
    iid_acceptance,
    lookahead_speedup,
    lookahead_tokens,
    one_hot_acceptance,
    sample_match_acceptance,
)

from .laws import P, Q, pairs, rates


def test_worked_pair_exactly():
    assert [iid_acceptance(P, Q, k) for k in (1, 2, 3)] == [F(7, 10), F(19, 25), F(101, 125)]
    assert [sample_match_acceptance(P, Q, k) for k in (1, 2, 3)] == [F(29, 100), F(483, 1000), F(6161, 10000)]
    assert distinct_acceptance(P, Q, 2) == F(41, 50)
    assert one_hot_acceptance(P, [2]) == F(1, 5)
    assert one_hot_acceptance(P, [2, 1]) == F(1, 2)
    assert one_hot_acceptance(P, [1, 1]) == F(3, 10)


def test_four_tokens_with_repeated_draws():
    p = [F(3, 10), F(3, 10), F(2, 10), F(2, 10)]
    q = [F(70, 100), F(5, 100), F(15, 100), F(10, 100)]
    assert iid_acceptance(p, q, 2) == F(71, 100)


def _walk(p, q, tokens, distinct):
    """(chance of drawing `tokens` in this order, chance that the exact rule refuses them all)."""
    target, draft = list(p), list(q)
    drawn, refused = F(1), F(1)
    for x in tokens:
        if not draft[x]:
            return F(0), F(0)
        drawn *= draft[x]
        refused *= 1 - min(F(1), target[x] / draft[x])
        left = [max(F(0), a - b) for a, b in zip(target, draft, strict=True)]
        target = [rest / sum(left) for rest in left] if any(left) else target
        if distinct:
            draft[x] = F(0)
            draft = [chance / sum(draft) for chance in draft] if any(draft) else draft
    return drawn, refused


def _enumerated(p, q, k, distinct):
    walks = [_walk(p, q, tokens, distinct) for tokens in product(range(len(p)), repeat=k)]
    return 1 - sum(drawn * refused for drawn, refused in walks)


@given(pairs(), st.integers(0, 3))
def test_iid_children_by_enumeration(pair, k):
    p, q = pair
    assert iid_acceptance(p, q, k) == _enumerated(p, q, k, distinct=False)


@given(pairs(), st.integers(0, 3))
def test_distinct_children_by_enumeration(pair, k):
    p, q = pair
    k = min(k, sum(chance > 0 for chance in q))
    assert distinct_acceptance(p, q, k) == _enumerated(p, q, k, distinct=True)


@given(pairs(), st.integers(1, 3))
def test_order_of_the_rules(pair, k):
    """More children never hurt, and the multi-step rule never loses to sample and match."""
    p, q = pair
    assert iid_acceptance(p, q, 1) == distinct_acceptance(p, q, 1) == acceptance_rate(p, q)
    assert sample_match_acceptance(p, q, k) <= iid_acceptance(p, q, k) <= iid_acceptance(p, q, k + 1)
    assert distinct_acceptance(p, q, k) <= distinct_acceptance(p, q, k + 1)


def test_more_children_than_tokens_are_no_more_than_all_of_them():
    assert distinct_acceptance(P, Q, 50) == distinct_acceptance(P, Q, 3)


def test_floats_follow_the_fractions():
    p, q = [float(x) for x in P], [float(x) for x in Q]
    assert iid_acceptance(p, q, 3) == pytest.approx(101 / 125)
    assert distinct_acceptance(p, q, 2) == pytest.approx(41 / 50)
    assert iid_acceptance(p, p, 2) == distinct_acceptance(p, p, 2) == pytest.approx(1)


@pytest.mark.parametrize(
    ("candidates", "tokens"),
    [
        (1, [1.4251, 1.9375, 2.7731]),
        (2, [1.7513, 2.5430, 3.6408]),
        (4, [2.2099, 3.2624, 4.4045]),
        (8, [2.7317, 3.9557, 4.8495]),
    ],
)
def test_lookahead_table(candidates, tokens):
    assert [lookahead_tokens(a, 4, candidates) for a in (0.3, 0.5, 0.7)] == pytest.approx(tokens, abs=6e-5)


@given(rates, st.integers(0, 6), st.integers(1, 5))
def test_lookahead_starts_at_a_chain_and_grows(alpha, length, candidates):
    assert lookahead_tokens(alpha, length, 1) == expected_tokens(alpha, length)
    tokens = lookahead_tokens(alpha, length, candidates)
    assert tokens <= lookahead_tokens(alpha, length, candidates + 1) <= length + 1


def test_no_candidate_is_plain_decoding():
    assert lookahead_tokens(F(1, 2), 4, 0) == 1


def test_lookahead_speedup_spreads_a_hit_over_its_passes():
    assert lookahead_speedup(F(5, 2), 1) == F(5, 2)
    assert lookahead_speedup(F(5, 2), 3) == F(3, 2)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: iid_acceptance(P, Q, -1), "num_children"),
        (lambda: distinct_acceptance([0.001] * 1000, [0.001] * 1000, 4), "num_children"),
        (lambda: lookahead_tokens(2, 4, 1), "alpha"),
        (lambda: lookahead_speedup(2.0, 0.5), "passes_per_hit"),
    ],
)
def test_bad_input_is_refused_by_name(call, field):
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert caught.value.field == field
