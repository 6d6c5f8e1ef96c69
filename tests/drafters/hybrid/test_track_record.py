"""What a drafter's past promises, by hand."""

from copy import deepcopy
from dataclasses import replace

import pytest

from paceline.drafters.hybrid.track_record import TrackRecord
from paceline.sampling import Law, TokenTree
from paceline.speculation.outcome import followed

CHAIN = TokenTree.chain((1, 2, 3))
FORK = TokenTree.trie([(1, 2), (1, 3, 4)])


@pytest.mark.parametrize(
    ("tree", "tokens", "expected"),
    [
        (CHAIN, (1, 2, 9), (2, True)),
        (CHAIN, (1, 2, 3, 4), (3, False)),
        (CHAIN, (1,), (1, True)),
        (CHAIN, (9,), (0, True)),
        (FORK, (1, 3, 4, 5), (3, False)),
        (FORK, (1, 2, 4), (2, False)),
        (TokenTree(), (1,), (0, False)),
    ],
)
def test_a_text_is_followed_through_a_tree(tree, tokens, expected):
    assert followed(tree.tokens, tree.parents, tokens) == expected


def test_equal_draws_are_followed_together():
    half = Law.one_hot(1)
    tree = TokenTree((1, 1, 2), (-1, -1, 1), "iid", (half, Law.one_hot(2)), (0, 0, 1))
    assert followed(tree.tokens, tree.parents, (1, 2)) == (2, False)


def sure(*chances: float) -> TokenTree:
    """`CHAIN` with these chances."""
    return replace(CHAIN, chances=chances)


def test_promises_that_are_not_kept_are_believed_less():
    record, tree = TrackRecord(), sure(1.0, 0.6, 0.4)
    assert record.chances(tree) == [1.0, 0.6, 0.4]
    for _ in range(100):
        record.learn(tree, (1, 9))  # one of two promised tokens was accepted
    correction = (1 + 0.05 * 8) / (2 + 0.05 * 8)  # of moving sums over 20 proposals, which draw back to 8 and 8
    assert record.chances(tree) == pytest.approx([one * correction for one in (1.0, 0.6, 0.4)], rel=0.01)


def test_a_drafter_that_promised_too_little_is_believed_as_it_stands():
    record = TrackRecord()
    for _ in range(100):
        record.learn(sure(0.1, 0.1, 0.1), (1, 2, 3, 4))
    assert record.chances(sure(0.9, 0.5, 0.1)) == [0.9, 0.5, 0.1]


def test_a_promise_is_judged_by_the_part_that_could_be_seen():
    record = TrackRecord()
    for _ in range(20):
        record.learn(sure(1.0, 1.0, 1.0), (1,))  # the step emitted one token, and it was the first of the chain
    assert record.chances(sure(1.0, 1.0, 1.0)) == pytest.approx([1.0, 1.0, 1.0])
    assert record.rates.acceptance > 0.9


def test_without_an_estimate_the_rate_of_acceptance_is_taken():
    record = TrackRecord()
    alpha = record.rates.acceptance
    assert record.chances(CHAIN) == pytest.approx([alpha, alpha**2, alpha**3])
    siblings = record.chances(FORK)  # they share what is expected of their level
    assert siblings == pytest.approx([alpha, alpha**2 / 2, alpha**2 / 2, alpha**3])
    assert record.chances(TokenTree()) == []
    record.learn(CHAIN, (9,))
    assert record.rates.acceptance < alpha
    record.learn(TokenTree(), (9,))
    assert record.steps_since_draft == 1
    before = deepcopy(record.rates)
    record.learn(CHAIN, ())
    assert (record.rates, record.steps_since_draft) == (before, 1)
    record.learn(CHAIN, (1,))
    assert record.rates != before
    assert record.steps_since_draft == 0
