"""`worth_verifying` against trying every number of nodes, and `GoodputByNode`: who is asked, what is verified."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculation import BatchStats, DrafterTraits, DraftStats, FixedPrices, GoodputByNode, make_policy
from paceline.speculation.best_draft import worth_verifying
from paceline.speculation.outcome import RequestOutcome

CHANCES = st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda values: np.sort(np.array(values))[::-1])


def bent(rows: float, context: float = 0.0) -> float:
    """Rows are cheap up to 5 and dear beyond."""
    return 1 + 0.03 * rows + 0.2 * max(0, rows - 5)


def lookup(prices=bent, ask: float = 0.0) -> GoodputByNode:
    return GoodputByNode(FixedPrices(prices, lambda num_requests, context: ask), max_length=8, can_look=True)


@given(chances=st.lists(CHANCES, min_size=1, max_size=3), others=st.integers(0, 3))
def test_no_other_numbers_of_nodes_make_more_tokens_per_second(chances, others):
    batch = BatchStats(num_decodes=len(chances) + others, num_prefill_rows=2)
    choice = worth_verifying(chances, FixedPrices(bent), batch)

    def rate(counts) -> float:
        tokens = sum(one[:count].sum() for one, count in zip(chances, counts, strict=True))
        return (batch.num_decodes + tokens) / bent(2 + batch.num_decodes + sum(counts))

    best = max(rate(counts) for counts in product(*[range(len(one) + 1) for one in chances]))
    assert rate(choice.levels.tolist()) == pytest.approx(best)
    assert choice.rate == pytest.approx(best)


def test_the_dearer_rows_are_the_surer_a_node_must_be():
    chances, stats = [(0.9, 0.5, 0.2, 0.05)], [DraftStats()]
    policies = [lookup(lambda rows, _, row=row: 1 + row * rows) for row in (0, 0.1, 0.4, 2)]
    kept = [policy.trim(chances, stats, BatchStats()) for policy in policies]
    assert kept == [[4], [3], [2], [1]]


def test_estimates_that_turned_out_too_high_are_lowered():
    stats = DraftStats()
    for _ in range(60):
        stats.learn(RequestOutcome("r", num_new=1, num_draft_tokens=2, asked=True, promised=1.5, level_refused=True))
    dear = lookup(lambda rows, _: 1 + 0.1 * rows)
    assert dear.trim([(0.9, 0.5, 0.2)], [DraftStats()], BatchStats()) == [3]
    assert dear.trim([(0.9, 0.5, 0.2)], [stats], BatchStats()) == [2]


def test_who_proposes_nothing_that_pays_is_asked_no_more_until_a_look_finds_something():
    policy, stats = lookup(ask=0.06), DraftStats()
    asked = 0
    while policy.budgets([stats], BatchStats()) == [8]:
        assert policy.trim([(0.02, 0.01)], [stats], BatchStats()) == [0]
        asked += 1
    assert asked == 6
    steps = 0
    while not policy.looks([stats], [0]):
        policy.budgets([stats], BatchStats())
        steps += 1
    assert 10 < steps < 100
    policy.trim([(1.0, 1.0, 0.9)], [stats], BatchStats())
    assert policy.budgets([stats], BatchStats()) == [8]


def test_everybody_is_asked_where_asking_takes_next_to_nothing():
    policy, stats = lookup(ask=0.04), DraftStats()
    for _ in range(30):
        assert policy.budgets([stats], BatchStats()) == [8]
        policy.trim([()], [stats], BatchStats())
    assert policy.budgets([stats] * 2, BatchStats(num_decodes=2)) == [0, 0]


def test_drafters_that_estimate_are_given_it_under_the_name_of_goodput():
    prices = FixedPrices(bent)
    for name in ("auto", "goodput"):
        assert isinstance(make_policy(name, {}, 8, DrafterTraits(estimates=True), prices), GoodputByNode)
        assert not isinstance(make_policy(name, {}, 8, DrafterTraits(), prices), GoodputByNode)
