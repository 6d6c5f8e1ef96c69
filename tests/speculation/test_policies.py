"""Length policies: hand-worked values, the published goodput table, and what they may not see."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling import Law
from paceline.speculation import (
    BatchStats,
    CostProfile,
    DraftStats,
    Fixed,
    FixedPrices,
    Goodput,
    Heuristic,
    PrefixStats,
)
from paceline.speculation.outcome import RequestOutcome, StepOutcome, StepSeconds
from paceline.speculation.records import DraftRates
from paceline.theory.speedup import best_measured_length
from tests.speculation.drafts import at_rate, at_rates, one_row_costs, verified

GOODPUT_TABLE = {
    0.5: {1: 3, 4: 2, 8: 2, 16: 2, 32: 1, 64: 1, 128: 0, 256: 0},
    0.7: {1: 5, 4: 4, 8: 4, 16: 3, 32: 2, 64: 1, 128: 1, 256: 0},
    0.9: {1: 8, 4: 8, 8: 8, 16: 7, 32: 5, 64: 4, 128: 2, 256: 2},
}
"""alpha -> batch size -> best length, for t(M) = 1 + M / 100, 0.05 per draft step and at most 8 drafted tokens."""


def linear_cost(**fields: Any) -> Goodput:
    prices = FixedPrices(lambda rows, _: 1 + 0.01 * rows, lambda *_: 0.05)
    return Goodput(prices, **{"explore": 0.0, **fields})


def row_by_row() -> FixedPrices:
    """A pass takes as long as it has rows."""
    return FixedPrices(lambda rows, _: float(rows))


def one_budget(policy, stats: DraftStats, **batch) -> int:
    return policy.budgets([stats], BatchStats(**batch))[0]


def test_fixed_is_fixed():
    assert Fixed(4).budgets([DraftStats()] * 2, BatchStats()) == [4, 4]
    assert Fixed(4).keep_drafting(PrefixStats(DraftStats(), BatchStats(), 4), [Law.one_hot(1)])


@pytest.mark.parametrize(
    ("last", "depth", "accepted", "expected"),
    [(None, 0, 0, 5), (5, 5, 5, 7), (5, 5, 4, 4), (1, 1, 0, 1), (20, 20, 20, 20), (5, 2, 2, 7)],
)
def test_heuristic_adds_two_or_takes_one(last, depth, accepted, expected):
    stats = DraftStats(last_budget=last, last_depth=depth, last_accepted_tokens=accepted)
    assert one_budget(Heuristic(), stats) == expected


def test_heuristic_ignores_drafts_that_came_back_empty():
    stats = DraftStats()
    stats.learn(verified(5, 5))
    assert one_budget(Heuristic(), stats) == 7
    stats.learn(verified(0, 0, wanted=7))
    assert one_budget(Heuristic(), stats) == 7


def test_a_tree_is_accepted_in_full_when_a_whole_path_stands():
    stats = DraftStats()
    stats.learn(RequestOutcome("r", num_new=3, num_draft_tokens=6, depth=2, num_accepted=2, wanted=6, asked=True))
    assert one_budget(Heuristic(), stats) == 8


@pytest.mark.parametrize(("alpha", "size"), [(a, b) for a, row in GOODPUT_TABLE.items() for b in row])
def test_goodput_finds_the_published_optimum(alpha, size):
    budgets = linear_cost().budgets([at_rate(alpha)] * size, BatchStats(num_decodes=size))
    assert budgets == [GOODPUT_TABLE[alpha][size]] * size


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_goodput_stands_the_extreme_rates(alpha):
    assert one_budget(linear_cost(), at_rate(alpha)) == (8 if alpha else 0)


def test_goodput_drafts_less_beside_a_large_prefill_when_rows_are_dear():
    steep = Goodput(FixedPrices(CostProfile({1: 1.0, 8: 1.0, 9: 9.0})), explore=0.0)
    assert one_budget(steep, at_rate(0.9), num_prefill_rows=0) == 7
    assert one_budget(steep, at_rate(0.9), num_prefill_rows=4) == 3


def test_goodput_asks_for_the_price_behind_the_batchs_own_context():
    cost = FixedPrices(CostProfile.by_context({0: {1: 1.0, 9: 1.0}, 1000: {1: 1.0, 9: 9.0}}))
    assert one_budget(Goodput(cost, explore=0.0), at_rate(0.6), mean_context=0) == 8
    assert one_budget(Goodput(cost, explore=0.0), at_rate(0.6), mean_context=1000) == 0


def test_ties_take_the_smaller_length():
    assert one_budget(Goodput(row_by_row(), explore=0.0), at_rate(1.0)) == 0


def test_rows_go_to_the_requests_whose_drafts_stand():
    """Four rows are free and the fifth is dear: all alike would get one each."""
    policy = Goodput(FixedPrices(CostProfile({1: 1.0, 8: 1.0, 9: 3.0})), explore=0.0)
    requests = [at_rate(0.9), at_rate(0.2), at_rate(0.2), at_rate(0.2)]
    assert policy.budgets(requests, BatchStats(num_decodes=4)) == [4, 0, 0, 0]


def test_a_drafter_that_rarely_answers_costs_rows_only_when_it_does():
    policy = Goodput(FixedPrices(CostProfile({1: 1.0, 16: 1.0, 17: 2.0})), num_draft_tokens=1, explore=0.0)
    rarely = DraftRates(asked=4.0, answered=1.0, accepted=[0.5], tested=[1.0])
    batch = BatchStats(num_decodes=12)
    assert sum(policy.budgets([DraftStats(rates=rarely)] * 12, batch)) == 12
    assert sum(policy.budgets([at_rate(0.5)] * 12, batch)) == 4


@given(st.lists(st.floats(0, 1), min_size=1, max_size=3), st.floats(0.001, 0.5), st.sampled_from([0.0, 0.3]))
def test_goodput_is_the_best_of_all_allocations(alphas, row, draft_step):
    """By trying them all, where a draft step costs the same for one request and for many."""
    length, size = 3, len(alphas)
    policy = Goodput(FixedPrices(lambda rows, _: 1 + row * rows, lambda *_: draft_step), length, explore=0.0)

    def goodput(budgets) -> float:
        tokens = size + sum(alpha**level for alpha, k in zip(alphas, budgets, strict=True) for level in range(1, k + 1))
        return tokens / (1 + row * (size + sum(budgets)) + draft_step * max(budgets))

    found = policy.budgets([at_rate(alpha) for alpha in alphas], BatchStats(num_decodes=size))
    best = max(map(goodput, product(range(length + 1), repeat=size)))
    assert goodput(found) == pytest.approx(best, rel=1e-9)


def test_goodput_comes_back_by_exploring():
    policy, off = linear_cost(explore=0.005), at_rate(0.01)
    tried = []
    for _ in range(100):
        tried.append(one_budget(policy, off))
        off.learn(verified(1, 0) if tried[-1] else RequestOutcome("r", num_new=1))
    assert set(tried) == {0, 1}
    for _ in range(25):
        off.learn(verified(1, 1))
    assert one_budget(policy, off) > 1
    assert one_budget(linear_cost(explore=0.5, num_draft_tokens=0), off) == 0


@pytest.mark.parametrize("size", [1, 4, 64])
def test_exploring_costs_no_more_than_its_share(size):
    """Rows that cost as much as those of other requests, and drafts that are never accepted."""
    policy, requests = Goodput(row_by_row(), explore=0.01), [at_rate(0.0) for _ in range(size)]
    batch, rows, steps = BatchStats(num_decodes=size), 0, 3000
    for _ in range(steps):
        budgets = policy.budgets(requests, batch)
        rows += sum(budgets)
        for one, k in zip(requests, budgets, strict=True):
            one.learn(verified(k, 0) if k else RequestOutcome("r", num_new=1))
    assert 0.008 < rows / (steps * size) < 0.0105


def test_one_trial_that_took_seconds_does_not_end_trials():
    """As the first draft of a head does whose kernels are compiled."""
    policy, request, tried = linear_cost(explore=0.01), at_rate(0.01), []
    for step in range(12_000):
        [nodes] = policy.budgets([request], BatchStats())
        tried += [step] * (nodes > 0)
        drafting = 0.05 + 1000.0 * (nodes > 0 and len(tried) == 1)
        outcome = RequestOutcome("r", num_draft_tokens=nodes, num_new=1)
        policy.observe(StepOutcome([outcome], seconds=StepSeconds(drafting=drafting * nodes, verifying=1.01)))
    assert 1_500 < tried[1] - tried[0] < 4_000 and len(tried) > 100


@pytest.mark.parametrize("seconds", [1e-200, 1e200])
def test_steps_of_any_time_have_a_decision(seconds):
    policy = Goodput(FixedPrices(lambda rows, _: seconds), explore=0.0)
    assert policy.budgets([at_rate(0.9), at_rate(0.9)], BatchStats(2))


@pytest.mark.parametrize("size", [1, 2])
def test_what_trying_took_beyond_its_price_is_waited_for(size):
    def share(drafting: float, more: float = 0.0, noise: float = 0.0, after: float = 0.0) -> float:
        """Of the time that tries take: each so long, priced at 0.05, so much more wherever a step has one, and so much
        in the step after it."""
        policy, requests, spent, passed = linear_cost(explore=0.01), [at_rate(0.01) for _ in range(size)], 0.0, 0.0
        rng, late = random.Random(1), 0.0
        for _ in range(5_000):
            budgets = policy.budgets(requests, BatchStats(size))
            tried = sum(budgets)
            verifying = 1 + 0.01 * (size + tried) + more * (tried > 0) + rng.uniform(-noise, noise) + late
            took = StepSeconds(drafting=drafting * tried, verifying=verifying)
            outcomes = [RequestOutcome("r", num_draft_tokens=k, num_new=1) for k in budgets]
            policy.observe(StepOutcome(outcomes, seconds=took))
            spent, passed = spent + drafting * tried + more * (tried > 0) + late, passed + 1 + 0.01 * size
            late = after * (tried > 0)
        return spent / passed

    assert 0.005 < share(0.05) <= 0.01  # the rest is rows that are verified in vain
    assert 0.005 < share(2.0) <= 0.011
    assert 0.005 < share(0.05, more=1.0) <= 0.012  # a pass that was begun meanwhile, and was for nothing
    assert 0.005 < share(0.05, more=1.0, after=1.0) <= 0.014  # and the next pass is not begun ahead either
    assert share(0.05, noise=0.2) > 0.7 * share(0.05)  # steps that vary by more than a try costs are no reason to wait


def time_tried(policy, batches, draft, row) -> float:
    """The share of the time that tries take when each draft takes `draft` and each of its rows `row`, all refused."""
    requests, spent, passed = [at_rate(0.0) for _ in range(8)], 0.0, 0.0
    for number in range(6000):
        batch = batches[number % len(batches)]
        budgets = policy.budgets(requests[: batch.num_decodes], batch)
        tried, rows = sum(k > 0 for k in budgets), batch.num_decodes + batch.num_prefill_rows
        seconds = StepSeconds(drafting=draft * tried, verifying=1 + row * (rows + sum(budgets)))
        outcomes = [RequestOutcome("r", num_draft_tokens=k, num_new=1) for k in budgets]
        policy.observe(StepOutcome(outcomes, batch.num_prefill_rows, seconds=seconds))
        spent, passed = spent + draft * tried + row * sum(budgets), passed + 1 + row * rows
    return spent / passed


@pytest.mark.parametrize("size", [1, 2])
def test_trying_a_whole_draft_is_priced_as_one_draft(size):
    prices = FixedPrices(lambda rows, _: 1 + 0.01 * rows, lambda num_requests, _: 0.5 * num_requests)
    policy = Goodput(prices, num_draft_tokens=8, explore=0.02, whole=True)
    assert 0.01 < time_tried(policy, [BatchStats(size)], draft=0.5, row=0.01) <= 0.022


@pytest.mark.parametrize("size", [1, 2])
def test_what_drafting_took_beyond_its_price_is_waited_for_beside_prompts_too(size):
    policy, batch = linear_cost(explore=0.01), BatchStats(size, num_prefill_rows=4)
    assert 0.005 < time_tried(policy, [batch], draft=2.0, row=0.01) <= 0.011


def test_rows_are_paid_for_where_no_step_of_as_many_requests_is_known():
    prices = FixedPrices(lambda rows, _: 1.0 + rows)
    policy = Goodput(prices, explore=0.01)
    assert 0.005 < time_tried(policy, [BatchStats(2), BatchStats(3)], draft=0.0, row=1.0) <= 0.011


def test_a_draft_dearer_than_many_steps_is_tried_in_the_end():
    policy = Goodput(FixedPrices(lambda rows, _: 1.0, lambda *_: 20.0), num_draft_tokens=1, explore=0.1)
    stats, tried = at_rate(0.0), []
    for _ in range(1000):
        tried.append(one_budget(policy, stats))
    assert sum(tried) == pytest.approx(1000 * 0.1 / 20, abs=1)


def test_trying_a_tree_is_priced_by_all_of_its_rows():
    """The first row is nearly free and the sixth is not: a price per row would try six times too often."""
    policy = Goodput(FixedPrices(CostProfile({1: 1.0, 2: 1.01, 7: 7.0})), explore=0.05, whole=True)
    refused = DraftStats(
        rates=DraftRates(asked=2.0, answered=2.0, drafts=2.0, nodes=12.0, accepted=[0.0], tested=[2.0])
    )
    assert sum(one_budget(policy, refused) > 0 for _ in range(1200)) == pytest.approx(1200 * 0.05 / 6, abs=1)


def test_those_who_waited_longest_try_first():
    policy = Goodput(row_by_row(), explore=0.34)
    requests = [at_rate(0.0, steps_since_draft=waited) for waited in (3, 9, 6)]
    assert policy.budgets(requests, BatchStats(num_decodes=3)) == [0, 1, 0]


def test_trying_a_drafter_that_never_answers_costs_nothing():
    policy = Goodput(row_by_row(), explore=0.001)
    silent = DraftStats(rates=DraftRates(accepted=[0.0], answered=0.0))
    assert one_budget(policy, silent) == 1


WIDE = DraftRates(asked=2.0, answered=2.0, drafts=2.0, nodes=12.0, accepted=[3.0], tested=[4.0])
"""Trees of six nodes, of which one and a half stand."""


@pytest.mark.parametrize(("row", "expected"), [(0.01, 8), (0.3, 8), (0.4, 0)])
def test_whole_drafts_are_taken_or_left_by_what_they_bring(row, expected):
    """2.5 tokens for 7 rows against 1 for one: worth it while 2.5 (1 + r) > 1 + 7 r."""
    policy = Goodput(one_row_costs(row), explore=0.0, whole=True)
    assert one_budget(policy, DraftStats(rates=WIDE)) == expected
    assert policy.keep_drafting(PrefixStats(at_rate(0.01), BatchStats(), 8), [law(0.5)])


@given(st.floats(0, 1), st.integers(1, 40), st.integers(0, 9))
def test_goodput_equals_the_closed_form_scan(alpha, size, prefill):
    """With or without rows of prompts, for every row costs the same here."""
    best = best_measured_length(alpha, lambda rows: 1 + 0.01 * size * rows, 0.05, 8)
    batch = BatchStats(num_decodes=size, num_prefill_rows=prefill)
    assert linear_cost().budgets([at_rate(alpha)] * size, batch) == [best.num_draft_tokens] * size


def law(largest: float) -> Law:
    return Law.from_dense(np.array([largest, 1 - largest])) if largest < 1 else Law.one_hot(0)


def test_goodput_goes_on_while_one_more_token_pays():
    prefix = PrefixStats(at_rate(0.8), BatchStats(), budget=8)
    assert linear_cost().keep_drafting(prefix, [law(0.99)])
    assert not linear_cost().keep_drafting(prefix, [law(0.99)] + [law(0.5)] * 4)
    assert not linear_cost().keep_drafting(replace(prefix, request=at_rate(0.01)), [law(0.99)])


@given(st.lists(st.floats(0.5, 1), min_size=1, max_size=8), st.floats(0.01, 1))
def test_goodput_stops_exactly_where_the_rate_of_tokens_would_fall(confidences, alpha):
    draft_laws = [law(c) for c in confidences]
    prefix = PrefixStats(at_rate(alpha), BatchStats(), budget=8)
    survivals = np.cumprod([float(one.probs.max()) for one in draft_laws])
    drafted, expected = len(draft_laws), 1 + survivals.sum()
    seconds = [1 + 0.01 * (k + 1) + 0.05 * k for k in (drafted, drafted + 1)]
    gain = (expected + survivals[-1] * alpha) / seconds[1] - expected / seconds[0]
    if abs(gain) > 1e-9:
        assert linear_cost().keep_drafting(prefix, draft_laws) == (gain > 0)


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (Fixed, "num_draft_tokens", -1),
        (Heuristic, "least", 0),
        (Heuristic, "start", 30),
        (linear_cost, "num_draft_tokens", -1),
        (linear_cost, "explore", 1.5),
    ],
)
def test_impossible_lengths_are_refused(make, field, value):
    with pytest.raises(InvalidParameter, match=field):
        make(**{field: value})


def counted(prices: FixedPrices) -> tuple[FixedPrices, list[float]]:
    """The same prices, and the rows of all passes that were asked for."""
    asked: list[float] = []

    def target(rows: float, context: float) -> float:
        asked.append(rows)
        return prices.target(rows, context)

    return FixedPrices(target, lambda num_requests, context: prices.draft_level(0, num_requests, context)), asked


def test_nobody_drafts_is_kept_for_eight_steps_of_the_same_requests():
    prices, asked = counted(row_by_row())
    policy, requests, batch = Goodput(prices, explore=0.0), [at_rate(0.1), at_rate(0.2)], BatchStats(2)
    decided = []
    for _ in range(17):
        asked.clear()
        assert policy.budgets(requests, batch) == [0, 0]
        decided.append(bool(asked))
    assert decided == ([True] + [False] * 7) * 2 + [True]


@pytest.mark.parametrize(
    "change", [lambda one, two: ([one], BatchStats(1)), lambda one, two: ([one, two], BatchStats(2, 5)),
               lambda one, two: ([two, one], BatchStats(2))],
)  # fmt: skip
def test_other_requests_or_a_prompt_beside_them_are_decided_anew(change):
    prices, asked = counted(row_by_row())
    policy, one, two = Goodput(prices, explore=0.0), at_rate(0.1), at_rate(0.2)
    policy.budgets([one, two], BatchStats(2))
    asked.clear()
    policy.budgets(*change(one, two))
    assert asked


def test_that_none_of_many_should_draft_holds_while_one_comes_and_one_goes():
    prices, asked = counted(row_by_row())
    policy, requests = Goodput(prices, explore=0.0), [at_rate(0.1) for _ in range(9)]
    policy.budgets(requests[:8], BatchStats(8))
    for others in (requests[1:], requests[2:], requests[1:9]):
        asked.clear()
        assert policy.budgets(others, BatchStats(len(others))) == [0] * len(others)
        assert not asked
    policy.budgets(requests[1:], BatchStats(8))
    assert asked, "after four steps it is decided anew"


def test_drafts_are_decided_at_every_step_while_few_requests_draft():
    prices, asked = counted(one_row_costs(0.01))
    policy, stats = Goodput(prices, explore=0.0), at_rates([0.9, 0.9])
    assert policy.budgets([stats], BatchStats()) == [8]
    asked.clear()
    stats.rates = DraftRates(accepted=[0.0], tested=[9.0])
    assert policy.budgets([stats], BatchStats()) == [0] and asked


def test_what_was_decided_for_many_requests_is_kept_for_a_step_per_sixteen():
    prices, asked = counted(one_row_costs(0.0001))
    policy, requests, batch = Goodput(prices, explore=0.0), [at_rate(0.5) for _ in range(48)], BatchStats(48)
    decided = []
    for _ in range(6):
        asked.clear()
        assert any(policy.budgets(requests, batch))
        decided.append(bool(asked))
    assert decided == [True, False, False] * 2


@pytest.mark.parametrize(("seconds", "kept"), [(1e-2, (1, 1)), (5e-4, (6, 7)), (1e-9, (64, 64))])
@pytest.mark.parametrize("num_requests", [1, 2])
def test_a_decision_is_kept_for_as_many_short_steps_as_make_it_cheap(seconds, kept, num_requests):
    """Deciding takes 26 microseconds for one request and 32 for two, and may take 1 % of the time."""
    prices, asked = counted(FixedPrices(lambda rows, _: seconds * (1 + 0.001 * rows)))
    policy, requests = Goodput(prices, explore=0.0), [at_rate(0.9) for _ in range(num_requests)]
    kept, decided = kept[num_requests - 1], []
    for _ in range(2 * kept):
        asked.clear()
        assert any(policy.budgets(requests, BatchStats(num_requests)))
        decided.append(bool(asked))
    assert decided == ([True] + [False] * (kept - 1)) * 2


def reader(seconds_per_token: float, **options) -> Goodput:
    """With a draft model whose steps cost a tenth of a pass, and which reads text at this price."""
    prices = FixedPrices(lambda rows, _: 1 + 0.01 * rows, lambda *_: 0.1, lambda num: seconds_per_token * num)
    return Goodput(prices, explore=0.0, **options)


def unread(num_tokens: int, alpha: float = 0.8, num_said: int = 1, num_left: int = 500, **fields) -> DraftStats:
    return at_rate(alpha, num_unread=num_tokens, num_said=num_said, num_left=num_left, **fields)


def test_a_text_is_read_when_the_tokens_to_come_repay_it():
    """A pass of 1 that brings 3 tokens saves 0.6 a token: 33 tokens to come repay a reading of 10, not one of 20."""
    policy, batch = reader(0.1), BatchStats()
    assert policy.budgets([unread(60)], batch)[0] > 0
    assert policy.budgets([unread(600)], batch) == [0]
    assert reader(0.0).budgets([unread(600)], batch)[0] > 0, "reading may be free"
    assert policy.budgets([unread(0)], batch)[0] > 0, "it was read"
    assert policy.budgets([unread(60, num_left=5)], batch) == [0], "the answer ends soon"
    assert policy.budgets([unread(300, num_said=200)], batch)[0] > 0, "one that is long already becomes longer"
    assert policy.budgets([unread(300)], batch) == [0]


def test_of_several_requests_those_are_read_that_repay_it():
    requests = [unread(20), unread(4000), unread(0), unread(30), unread(4000)]
    first, long, known, second, longer = reader(0.05).budgets(requests, BatchStats(num_decodes=5))
    assert (long, longer) == (0, 0) and min(first, known, second) > 0


def test_a_request_whose_text_was_never_read_is_given_the_benefit_of_the_doubt():
    """Its rates are those of earlier requests; where reading has no price a try costs little, so none is needed."""
    policy, batch = reader(0.001), BatchStats()
    poor = unread(10, alpha=0.01)
    assert policy.budgets([poor], batch)[0] > 0
    assert reader(0.0).budgets([poor], batch) == [0]
    poor.num_drafts = 1
    assert reader(0.001).budgets([poor], batch) == [0], "it was tried"


def test_trying_a_request_pays_for_reading_its_text():
    """A try for an unread text of 1000 tokens uses up more credit than 30 steps bring."""

    def tries(num_unread):
        policy = reader(0.1)
        policy.explore, request = 0.02, unread(num_unread, alpha=0.05, num_drafts=1)
        return sum(policy.budgets([request], BatchStats())[0] for _ in range(30))

    assert tries(0) > 0 and tries(1000) == 0
