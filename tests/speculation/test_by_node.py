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


def lookup(prices=bent, ask: float = 0.0, explore: float = 0.01) -> GoodputByNode:
    return GoodputByNode(FixedPrices(prices, lambda num_requests, context: ask), num_draft_tokens=8, explore=explore)


@given(chances=st.lists(CHANCES, min_size=1, max_size=3), others=st.integers(0, 3), prefill=st.sampled_from([0, 2, 50]))
def test_no_other_numbers_of_nodes_make_more_of_the_seconds(chances, others, prefill):
    batch = BatchStats(num_decodes=len(chances) + others, num_prefill_rows=prefill)
    choice = worth_verifying(chances, FixedPrices(bent), batch)

    def step(counts, prefill_rows) -> tuple[float, float]:
        tokens = sum(one[:count].sum() for one, count in zip(chances, counts, strict=True))
        return batch.num_decodes + tokens, bent(prefill_rows + batch.num_decodes + sum(counts))

    def gain(counts) -> float:
        tokens, seconds = step(counts, prefill)
        return tokens - rate * seconds

    every = list(product(*[range(len(one) + 1) for one in chances]))
    rate = max(tokens / seconds for tokens, seconds in (step(counts, 0) for counts in every))
    assert choice.rate == pytest.approx(rate)
    assert gain(choice.levels.tolist()) == pytest.approx(max(map(gain, every)), abs=1e-9)


def test_the_dearer_rows_are_the_surer_a_node_must_be():
    chances, stats = [(0.9, 0.5, 0.2, 0.05)], [DraftStats()]
    policies = [lookup(lambda rows, _, row=row: 1 + row * rows) for row in (0, 0.1, 0.4, 2)]
    kept = [policy.trim(chances, stats, BatchStats()) for policy in policies]
    assert kept == [[4], [3], [2], [1]]


def test_estimates_that_turned_out_too_high_are_lowered():
    stats = DraftStats()
    for _ in range(60):
        stats.learn(RequestOutcome("r", num_new=1, num_draft_tokens=2, asked=True, promised=1.5, level_rejected=True))
    dear = lookup(lambda rows, _: 1 + 0.1 * rows)
    assert dear.trim([(0.9, 0.5, 0.2)], [DraftStats()], BatchStats()) == [3]
    assert dear.trim([(0.9, 0.5, 0.2)], [stats], BatchStats()) == [2]


def test_nodes_that_only_just_seem_to_pay_are_left():
    batch, stats = BatchStats(num_decodes=64), [DraftStats()]
    dear = lookup(lambda rows, _: 3 + 0.95 * rows)  # at 64 rows one more costs 0.95 x 64 / 63.8 tokens
    chances = [(0.98, 0.97)]
    assert worth_verifying(chances, dear.prices, batch).levels.tolist() == [2]
    assert dear.trim(chances, stats, batch) == [0]
    assert lookup(lambda rows, _: 13 + 0.8 * rows).trim(chances, stats, batch) == [2]


def asked_in(
    policy: GoodputByNode, stats: DraftStats, chances: tuple[float, ...], num_steps: int, num_decodes: int = 1
) -> list[int]:
    """Steps of the only request that drafts in which it was asked and proposed nodes with these chances."""
    asked, batch = [], BatchStats(num_decodes=num_decodes)
    for step in range(num_steps):
        is_asked = policy.budgets([stats], batch) == [8]
        if is_asked:
            asked.append(step)
            policy.trim([chances], [stats], batch)
        stats.learn(RequestOutcome("r", num_new=1, asked=is_asked))
    return asked


def test_who_is_alone_and_proposes_nothing_that_pays_is_asked_for_four_shares_of_the_time():
    policy = lookup(ask=0.36, explore=0.01)  # a step takes 1.03, and asking half as much again as drafting
    first, *later = np.split(np.array(asked_in(policy, DraftStats(), (0.02, 0.01), 300)), [10])
    assert first.tolist() == list(range(10))
    assert np.diff(later[0]).tolist() == [14] * (len(later[0]) - 1) and len(later[0]) > 3


def test_who_drafts_alone_beside_others_that_decode_is_asked_for_one_share_of_the_time():
    policy = lookup(ask=0.36, explore=0.01)
    late = [step for step in asked_in(policy, DraftStats(), (0.02, 0.01), 300, num_decodes=4) if step > 20]
    assert np.diff(late).tolist() == [49] * (len(late) - 1) and len(late) > 3  # 0.54 / (0.01 x 1.12)


def test_who_proposes_something_again_is_asked_at_every_step_again():
    policy, stats = lookup(ask=0.36, explore=0.01), DraftStats()
    asked_in(policy, stats, (0.02,), 60)
    assert len(asked_in(policy, stats, (1.0, 1.0, 0.9), 200)) > 130


def test_the_more_requests_there_are_the_more_rarely_each_is_asked_in_vain():
    policy, many = lookup(ask=0.02, explore=0.01), [DraftStats() for _ in range(4)]
    batch, asked = BatchStats(num_decodes=4), []
    for _ in range(120):
        budgets = policy.budgets(many, batch)
        policy.trim([(0.01,)] * budgets.count(8), [one for one, n in zip(many, budgets, strict=True) if n], batch)
        for one, budget in zip(many, budgets, strict=True):
            one.learn(RequestOutcome("r", num_new=1, asked=budget > 0))
        asked.append(budgets.count(8))
    assert sum(asked[20:]) * 1.5 * 0.02 == pytest.approx(0.01 * 100 * bent(4), rel=0.2)


def test_without_exploring_who_does_not_pay_is_asked_no_more():
    assert asked_in(lookup(ask=0.36, explore=0.0), DraftStats(), (0.02,), 60) == list(range(10))


def test_everybody_is_asked_where_asking_takes_no_time():
    assert asked_in(lookup(), DraftStats(), (), 30) == list(range(30))


def test_drafters_that_estimate_are_given_it_under_the_name_of_goodput():
    prices = FixedPrices(bent)
    for name in ("auto", "goodput"):
        assert isinstance(make_policy(name, {}, 8, DrafterTraits(estimates=True), prices), GoodputByNode)
        assert not isinstance(make_policy(name, {}, 8, DrafterTraits(), prices), GoodputByNode)
