from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory import (
    acceptance_rate,
    greedy_lenient_tokens,
    lenience_ceiling,
    lenient_acceptance,
    lenient_law,
)

from .laws import P, Q, pairs

leniences = st.fractions(F(1, 20), 1, max_denominator=20)


def test_worked_pair_exactly():
    assert lenient_acceptance(P, Q, F(1, 2)) == F(9, 10)
    assert list(lenient_law(P, Q, F(1, 2))) == [F(3, 11), F(18, 55), F(2, 5)]
    assert list(lenience_ceiling(P, F(1, 2))) == [1, F(3, 5), F(2, 5)]
    assert lenient_acceptance(P, Q, F(1, 4)) == 1
    assert list(lenient_law(P, Q, F(1, 4))) == Q


def _emitted(p, q, lenience):
    """The emitted law by its definition, token by token: draw, test, recover."""
    emitted, refused = [F(0)] * len(p), F(0)
    for x, chance in enumerate(q):
        stands = min(F(1), p[x] / (lenience * chance)) if chance else F(0)
        emitted[x] += chance * stands
        refused += chance * (1 - stands)
    left = [max(F(0), a - lenience * b) for a, b in zip(p, q, strict=True)]
    return [e + refused * rest / sum(left) for e, rest in zip(emitted, left, strict=True)] if refused else emitted


@given(pairs(), leniences)
def test_emitted_law_matches_the_rule_and_its_ceiling(pair, lenience):
    p, q = pair
    law = lenient_law(p, q, lenience)
    assert list(law) == _emitted(p, q, lenience)
    assert law.sum() == 1
    assert (law <= lenience_ceiling(p, lenience)).all()


@given(pairs(), leniences, leniences)
def test_more_lenience_accepts_more_and_none_is_exact(pair, one, other):
    p, q = pair
    strict, lax = max(one, other), min(one, other)
    assert acceptance_rate(p, q) == lenient_acceptance(p, q, 1)
    assert lenient_acceptance(p, q, strict) <= lenient_acceptance(p, q, lax) <= 1
    assert list(lenient_law(p, q, 1)) == p


def test_greedy_lenience_is_not_the_inequality_as_printed():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    assert list(greedy_lenient_tokens(probs, 1)) == [0]
    assert list(greedy_lenient_tokens(probs, 0.5)) == [0, 1]
    as_printed = list(np.flatnonzero(probs <= 0.5 * probs.max()))
    assert as_printed == [2, 3]  # p <= l max p accepts exactly what should be refused


@pytest.mark.parametrize("lenience", [0, -0.5, 1.1, float("nan")])
def test_lenience_outside_its_range_is_refused(lenience):
    for call in (lambda: lenient_law(P, Q, lenience), lambda: greedy_lenient_tokens(P, lenience)):
        with pytest.raises(InvalidParameter, match="lenience"):
            call()
