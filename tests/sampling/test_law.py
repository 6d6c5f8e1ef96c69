"""`Law`: arithmetic on supports, against dense arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sampling import Law

VOCAB = 6
weights = st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB).filter(any)


def exact(row: list[int]) -> Law:
    dense = np.array([Fraction(weight) for weight in row], dtype=object)
    return Law.from_dense(dense / dense.sum())


def dense(law: Law) -> list:
    return law.on(np.arange(VOCAB)).tolist()


@given(weights, weights)
def test_overlap_and_excess_are_the_dense_ones(first: list[int], second: list[int]) -> None:
    p, q = exact(first), exact(second)
    assert p.overlap(q) == q.overlap(p) == sum(min(a, b) for a, b in zip(dense(p), dense(q), strict=True))
    scale, draft_scale = Fraction(2, 3), Fraction(1, 5)
    wanted = [max(scale * p.prob(token) - draft_scale * q.prob(token), 0) for token in p.tokens.tolist()]
    assert p.excess(q, scale, draft_scale).tolist() == wanted


@given(weights, weights)
def test_residual_is_a_law_over_the_tokens_the_draft_leaves_short(first: list[int], second: list[int]) -> None:
    p, q = exact(first), exact(second)
    if first == second or p.overlap(q) == 1:
        assert p.residual(q) is p
        return
    short = [max(a - b, 0) for a, b in zip(dense(p), dense(q), strict=True)]
    assert dense(p.residual(q)) == [part / sum(short) for part in short]


@given(weights, st.integers(0, VOCAB - 1))
def test_removing_a_token_is_the_residual_of_its_one_hot_law(row: list[int], token: int) -> None:
    law = exact(row)
    assert dense(law.without(token)) == dense(law.residual(Law.one_hot(token)))
    assert law.without(token).prob(token) == 0 or law.is_one_hot


def test_rounding_that_leaves_nothing_gives_the_law_itself() -> None:
    p = Law(np.array([0, 1]), np.array([0.3, 0.7]))
    q = Law(np.array([0, 1]), np.array([0.3, 0.7]) * (1 + 1e-16))
    assert p.residual(q) is p
    assert p.without(0, 1) is p


def test_prob_and_on_outside_the_support() -> None:
    law = Law(np.array([2, 5]), np.array([0.25, 0.75]))
    assert [law.prob(token) for token in (0, 2, 3, 5, 9)] == [0, 0.25, 0, 0.75, 0]
    assert law.on(np.array([9, 5, 0, 2])).tolist() == [0, 0.75, 0, 0.25]
    assert law.mode == 5


@pytest.mark.parametrize("partner", [Law(np.arange(2), np.array([0.5, 0.5])), exact([1, 1, 0, 0, 0, 0])])
def test_one_hot_mixes_with_floats_and_fractions(partner: Law) -> None:
    one_hot = Law.one_hot(1)
    assert one_hot.overlap(partner) == Fraction(1, 2)
    assert one_hot.excess(partner).tolist() == [Fraction(1, 2)]
    assert type(partner.excess(one_hot)[0]) is type(partner.probs[0])
