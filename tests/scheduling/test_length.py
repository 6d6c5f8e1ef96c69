"""Length policies: hand-worked values, the published goodput table, and what they may not see."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling import Law
from paceline.scheduling import BatchStats, CostProfile, DraftStats, Fixed, Goodput, Heuristic, PrefixStats
from paceline.scheduling.stats import AcceptanceRate
from paceline.theory.speedup import best_measured_length

GOODPUT_TABLE = {
    0.5: {1: 3, 4: 2, 8: 2, 16: 2, 32: 1, 64: 1, 128: 0, 256: 0},
    0.7: {1: 5, 4: 4, 8: 4, 16: 3, 32: 2, 64: 1, 128: 1, 256: 0},
    0.9: {1: 8, 4: 8, 8: 8, 16: 7, 32: 5, 64: 4, 128: 2, 256: 2},
}
"""alpha -> batch size -> best length, for t(M) = 1 + M / 100, 0.05 per draft step and at most 8 drafted tokens."""


def at_rate(alpha: float, **fields) -> DraftStats:
    return DraftStats(rate=AcceptanceRate(alpha, 1.0), **fields)


def linear_cost(**fields) -> Goodput:
    return Goodput(lambda rows, _: 1 + 0.01 * rows, lambda *_: 0.05, **fields)


def test_fixed_is_fixed():
    assert Fixed(4).budget(DraftStats(), BatchStats()) == 4
    assert Fixed(4).keep_drafting(PrefixStats(DraftStats(), BatchStats(), 4), [Law.one_hot(1)])


@pytest.mark.parametrize(
    ("last", "drafted", "accepted", "expected"),
    [(None, 0, 0, 5), (5, 5, 5, 7), (5, 5, 4, 4), (1, 1, 0, 1), (20, 20, 20, 20), (5, 2, 2, 7)],
)
def test_heuristic_adds_two_or_takes_one(last, drafted, accepted, expected):
    stats = DraftStats(last_budget=last, last_draft_tokens=drafted, last_accepted_tokens=accepted)
    assert Heuristic().budget(stats, BatchStats()) == expected


def test_heuristic_ignores_drafts_that_came_back_empty():
    stats = DraftStats().after(budget=5, num_draft_tokens=5, num_accepted=5, rejected=False)
    assert Heuristic().budget(stats.after(7, 0, 0, False), BatchStats()) == Heuristic().budget(stats, BatchStats()) == 7


@pytest.mark.parametrize(("alpha", "size"), [(a, b) for a, row in GOODPUT_TABLE.items() for b in row])
def test_goodput_finds_the_published_optimum(alpha, size):
    assert linear_cost().budget(at_rate(alpha), BatchStats(num_decodes=size)) == GOODPUT_TABLE[alpha][size]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_goodput_stands_the_extreme_rates(alpha):
    assert linear_cost().budget(at_rate(alpha), BatchStats()) == (8 if alpha else 0)


def test_goodput_drafts_less_beside_a_large_prefill_when_rows_are_dear():
    steep = Goodput(CostProfile({1: 1.0, 8: 1.0, 9: 9.0}))
    assert steep.budget(at_rate(0.9), BatchStats(num_prefill_rows=0)) == 7
    assert steep.budget(at_rate(0.9), BatchStats(num_prefill_rows=4)) == 3


def test_goodput_asks_for_the_price_behind_the_batchs_own_context():
    cost = CostProfile.by_context({0: {1: 1.0, 9: 1.0}, 1000: {1: 1.0, 9: 9.0}})
    assert Goodput(cost).budget(at_rate(0.6), BatchStats(mean_context=0)) == 8
    assert Goodput(cost).budget(at_rate(0.6), BatchStats(mean_context=1000)) == 0


def test_ties_take_the_smaller_length():
    assert Goodput(lambda rows, _: float(rows)).budget(at_rate(1.0), BatchStats()) == 0


def test_goodput_comes_back_by_exploring():
    policy, off = linear_cost(explore_every=10), at_rate(0.01)
    assert policy.budget(off, BatchStats()) == 0
    for _ in range(10):
        off = off.after(0, 0, 0, False)
    assert policy.budget(off, BatchStats()) == 1
    for _ in range(25):
        off = off.after(1, 1, 1, False)
    assert policy.budget(off, BatchStats()) > 1
    assert linear_cost(explore_every=1, max_length=0).budget(off, BatchStats()) == 0


def test_goodput_explores_less_often_among_many():
    """At 64 requests, one token in 32 steps each would be two rows in every step."""
    policy, hopeless = linear_cost(explore_every=32), at_rate(0.01, steps_since_draft=100)
    assert policy.budget(hopeless, BatchStats(num_decodes=4)) == 1
    assert policy.budget(hopeless, BatchStats(num_decodes=64)) == 0
    assert policy.budget(at_rate(0.01, steps_since_draft=512), BatchStats(num_decodes=64)) == 1


@given(st.floats(0, 1), st.integers(1, 40), st.integers(0, 9))
def test_goodput_equals_the_closed_form_scan(alpha, size, prefill):
    best = best_measured_length(alpha, lambda rows: 1 + 0.01 * (prefill + size * rows), 0.05, 8)
    batch = BatchStats(num_decodes=size, num_prefill_rows=prefill)
    assert linear_cost().budget(at_rate(alpha), batch) == best.num_draft_tokens


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
        (linear_cost, "max_length", -1),
        (linear_cost, "explore_every", 0),
    ],
)
def test_impossible_lengths_are_refused(make, field, value):
    with pytest.raises(InvalidParameter, match=field):
        make(**{field: value})


def test_the_moving_rate_finds_alpha_where_the_mean_of_ratios_does_not():
    rng, alpha, length = np.random.default_rng(3), 0.6, 4
    rate, weighted, ratios = AcceptanceRate(), [], []
    for _ in range(4000):
        accepted = int(np.argmin(np.append(rng.random(length) < alpha, False)))
        rate = rate.after(accepted, accepted < length)
        weighted.append(rate)
        ratios.append(accepted / (accepted + (accepted < length)))
    pooled = sum(r.accepted for r in weighted) / sum(r.tested for r in weighted)
    assert pooled == pytest.approx(alpha, abs=0.02)
    assert abs(np.mean(ratios) - alpha) > 0.1


def test_a_rate_without_tests_stays_what_it_was():
    assert AcceptanceRate().value == pytest.approx(0.7)
    assert AcceptanceRate().after(0, False) == AcceptanceRate()
