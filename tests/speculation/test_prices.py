"""What a pass and a draft cost, learned from passes and drafts."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.scheduling import PagePool, RequestState, Scheduler, SchedulerConfig, StepResult
from paceline.speculation import (
    BatchStats,
    CostProfile,
    DrafterTraits,
    DraftStats,
    Fixed,
    FixedPrices,
    Goodput,
    LearnedPrices,
    RequestOutcome,
    StepOutcome,
    StepSeconds,
)
from paceline.speculation.prices import LearnedDraft, LearnedPass, MovingAverage, roofline
from paceline.types import SamplingParams
from tests.speculation.drafts import verified

LOOKUP, MODEL = DrafterTraits(), DrafterTraits(cost_ratio=0.25)
WHOLE, CHOOSES = replace(MODEL, whole=True), replace(MODEL, whole=True, chooses=True)


def drafted(depth: int, in_a_row: bool = True, name: str = "r") -> RequestOutcome:
    outcome = verified(depth, 0, wanted=8, name=name)
    outcome.in_a_row = in_a_row
    return outcome


def test_measured_passes_are_learned_and_joined_by_lines():
    cost = LearnedPass(lambda rows, _: 1.0)
    for _ in range(200):
        for rows, seconds in ((1, 10.0), (4, 16.0)):
            cost.observe(rows, seconds)
    assert [cost(rows) for rows in (1, 4)] == pytest.approx([10, 16], rel=0.01)
    assert cost(1) < cost(2) < cost(3) < cost(4)


def test_the_prior_turns_from_reading_weights_to_arithmetic():
    prior = roofline(8)
    assert prior(1, 0) == pytest.approx(1, abs=0.01)
    assert prior(8, 0) == pytest.approx(2**0.5)
    assert prior(800, 0) == pytest.approx(100, rel=0.01)


def test_beyond_the_measured_passes_costs_rise_as_the_prior_does():
    cost = LearnedPass(lambda rows, _: 1 + rows)
    for _ in range(100):
        cost.observe(4, 10.0)
    assert cost(1) == pytest.approx(4, rel=0.1)
    assert cost(512) == pytest.approx(1026, rel=0.1)


def test_what_was_never_seen_costs_what_the_prior_says():
    """Noisy first passes at one number of rows must not make one more row look cheap or dear."""
    for seed in range(20):
        rng, cost = np.random.default_rng(seed), LearnedPass(roofline(8))
        for _ in range(12):
            cost.observe(64, float(np.exp(0.3 * rng.standard_normal())))
        assert cost(96) / cost(64) == pytest.approx(roofline(8)(96, 0) / roofline(8)(64, 0))
        assert cost(5) / cost(64) == pytest.approx(roofline(8)(5, 0) / roofline(8)(64, 0))


def test_the_first_pass_may_have_read_weights_from_disk():
    cost = LearnedPass(lambda rows, _: float(rows))
    for seconds in (50.0, 1.0, 1.2):
        cost.observe(1, seconds)
    assert cost(1) == pytest.approx(1) and cost(64) == pytest.approx(64)


@pytest.mark.parametrize("rows", [1, 3, 5000, 1 << 20])
def test_any_number_of_rows_has_a_price(rows):
    cost = LearnedPass(roofline(8))
    cost.observe(rows, 2.0)
    assert cost(rows) == pytest.approx(2)


def test_a_slower_machine_is_slower_for_every_pass():
    """Only small passes are seen after the machine slowed down; large ones are taken to have slowed down alike."""
    cost = LearnedPass(lambda rows, _: float(rows))
    for _ in range(100):
        for rows in (1, 64):
            cost.observe(rows, rows * 1.0)
    for _ in range(100):
        cost.observe(1, 1.5)
    assert cost(1) == pytest.approx(1.5, rel=0.01)
    assert cost(64) > 64 * 1.25


def test_noise_does_not_bend_the_price_of_a_row():
    rng, cost = np.random.default_rng(0), LearnedPass(roofline(8))
    for _ in range(2000):
        rows = int(rng.integers(32, 49))
        cost.observe(rows, roofline(8)(rows, 0) * float(np.exp(0.1 * rng.standard_normal())))
    slopes = [(cost(rows + 1) - cost(rows)) / cost(rows) * rows for rows in range(32, 48)]
    assert all(0.6 < slope < 1.4 for slope in slopes)


def test_a_pass_moves_slowly_and_outliers_count_less():
    cost = LearnedPass(roofline(8))
    for seconds in (10.0, 10.0, 10.0, 1000.0):
        cost.observe(1, seconds)
    assert 10 < cost(1) <= 16
    for _ in range(100):
        cost.observe(1, 8.0)
    assert cost(1) == pytest.approx(8, rel=0.01)


def test_a_profile_gives_the_shape_and_passes_the_level():
    profile = CostProfile.by_context({0: {1: 1.0, 9: 2.0}, 100: {1: 3.0, 9: 5.0}})
    cost = LearnedPass(profile)
    assert cost(9, 100) == 5
    cost.observe(9, 10.0, context=100)
    assert cost(9, 0) == pytest.approx(4)
    assert cost(1, 100) == pytest.approx(6)


def test_an_average_is_its_prior_until_it_has_settled_and_outliers_count_less():
    average = MovingAverage(7.0)
    for newest in (50.0, 1.0):
        average.learn(newest)
        assert average.value == 7.0
    average.learn(1.2)
    assert average.value == 1.0
    average.learn(1000.0)
    assert average.value == pytest.approx(1.2)


def test_the_first_drafts_may_have_read_weights_from_disk():
    drafts = LearnedDraft(lambda rows, _: 1.0, MODEL)
    for seconds in (50.0, 1.0):
        drafts.observe(1, 1, seconds)
        assert drafts(0, 1) == 0.25
    drafts.observe(1, 1, 1.2)
    assert drafts(0, 1) == pytest.approx(1)


def test_a_lookup_costs_each_request_the_same_however_deep_it_drafts():
    drafts = LearnedDraft(lambda rows, _: 1.0, LOOKUP)
    assert drafts(0, 4) == 0
    for depth in (1, 8, 8):
        drafts.observe_step([drafted(depth)], seconds=0.01, context=0)
    assert drafts(0, 1) == pytest.approx(0.01)
    assert drafts(0, 4) == pytest.approx(0.04)
    assert [drafts(level, 4) for level in range(1, 8)] == [0] * 7


def test_a_lookup_that_found_nothing_cost_as_much():
    drafts = LearnedDraft(lambda rows, _: 1.0, LOOKUP)
    for asked in ([drafted(3), drafted(0)], [drafted(0)] * 2, [drafted(8, in_a_row=False), drafted(3)]):
        drafts.observe_step(asked, seconds=0.02, context=0)
    assert drafts(0, 1) == pytest.approx(0.01)


def test_a_draft_model_costs_its_share_of_a_pass_over_as_many_rows_as_requests_until_measured():
    drafts = LearnedDraft(lambda rows, context: rows + context, MODEL)
    for level in (0, 5):
        assert drafts(level, 4, context=8) == 0.25 * 12


def test_a_draft_model_costs_every_level_the_same_and_only_the_deepest_draft_counts():
    drafts = LearnedDraft(CostProfile({1: 1.0, 4: 2.0}), MODEL)
    drafts.observe(0, 1, 3.0)
    assert drafts(0, 4) == 0.25 * 2
    for _ in range(3):
        drafts.observe_step([drafted(3), drafted(1, name="s"), drafted(0, name="t")], seconds=9.0, context=0)
    two = CostProfile({1: 1.0, 4: 2.0})(2)
    for level in range(8):
        assert drafts(level, 2) == pytest.approx(3)
        assert drafts(level, 4) == pytest.approx(3 * 2 / two)


def test_drafts_that_had_to_read_first_are_not_learned():
    drafts = LearnedDraft(lambda rows, _: 1.0, MODEL)
    for _ in range(5):
        drafts.observe_step([drafted(2), drafted(2, in_a_row=False, name="s")], seconds=99.0, context=0)
    assert drafts(0, 1) == 0.25
    for _ in range(3):
        drafts.observe_step([drafted(2), drafted(2, name="s")], seconds=1.0, context=0)
    assert drafts(0, 1) == pytest.approx(0.5)


def test_drafts_that_came_back_empty_teach_no_price_of_a_level():
    drafts = LearnedDraft(lambda rows, _: 1.0, MODEL)
    for _ in range(5):
        drafts.observe_step([drafted(0)], seconds=99.0, context=0)
    assert drafts(0, 1) == 0.25


def test_a_draft_that_cannot_be_shortened_has_one_price():
    drafts = LearnedDraft(lambda rows, _: 1.0, WHOLE)
    assert [drafts(level, 1) for level in range(3)] == [1.0, 0, 0]  # four levels of a default tree, a quarter each
    for _ in range(3):
        drafts.observe_step([drafted(6)], seconds=3.0, context=0)
    assert [drafts(level, 2) for level in range(3)] == [pytest.approx(3), 0, 0]


@pytest.mark.parametrize("traits", [CHOOSES, replace(LOOKUP, chooses=True)])
def test_a_drafter_that_chooses_has_a_price_per_request_like_a_lookup(traits):
    drafts = LearnedDraft(lambda rows, _: 1.0, traits)
    for _ in range(5):
        drafts.observe_step([drafted(6), drafted(6)], seconds=3.0, context=0)
    assert [drafts(level, 3) for level in range(3)] == [4.5, 0, 0]


def test_a_step_teaches_its_pass_by_rows_and_its_drafts_by_levels():
    prices = LearnedPrices(LearnedPass(lambda rows, _: float(rows)), MODEL)
    step = StepOutcome([drafted(3), drafted(3, name="s")], seconds=StepSeconds(9, drafting=6.0, verifying=16.0))
    for _ in range(3):
        prices.observe(step)
    assert prices.target(8) == pytest.approx(16 + 9)  # the pass, and what a step does besides
    assert prices.draft_level(0, 2) == pytest.approx(2)


def test_a_step_that_reads_a_prompt_teaches_its_drafts_but_not_its_pass():
    prices = LearnedPrices(LearnedPass(lambda rows, _: 1.0), MODEL)
    step = StepOutcome([drafted(2)], num_prefill_rows=64, seconds=StepSeconds(drafting=1.0, verifying=50.0))
    for _ in range(3):
        prices.observe(step)
    assert prices.target(3) == 1.0
    assert prices.draft_level(0, 1) == pytest.approx(0.5)


def undrafted(seconds: StepSeconds) -> StepOutcome:
    return StepOutcome([verified(0, 0, wanted=0)], seconds=seconds)


def test_a_step_without_drafts_costs_its_pass_where_that_hides_the_host():
    """Steps with drafts, whose host is not hidden, do not move it; enough steps in a row without drafts do."""
    curve = CostProfile({1: 1.0, 4: 1.0, 16: 2.0})
    prices = LearnedPrices(LearnedPass(curve), LOOKUP, hides_host=True)
    assert prices.undrafted(1) == pytest.approx(1.0)
    for _ in range(50):
        prices.observe(StepOutcome([drafted(3)], seconds=StepSeconds(scheduling=1.0, verifying=3.0, committing=1.0)))
    assert prices.target(4) == pytest.approx(5.0, rel=0.05)
    assert prices.undrafted(1) == pytest.approx(1.0)
    for number in range(60):
        hidden = StepSeconds(scheduling=0.5, verifying=0.25, committing=0.5)
        prices.observe(undrafted(hidden))
        if number < 15:  # not ahead yet
            assert prices.undrafted(1) == pytest.approx(1.0)
    assert prices.undrafted(1) == pytest.approx(1.25, rel=0.05)


def test_without_a_measured_curve_a_step_without_drafts_costs_what_passes_teach():
    prices = LearnedPrices(LearnedPass(roofline(100)), LOOKUP, hides_host=True)
    for _ in range(5):
        prices.observe(StepOutcome([drafted(3)], seconds=StepSeconds(verifying=0.004)))
    assert prices.undrafted(1) == pytest.approx(0.004, rel=0.01)


def test_elsewhere_a_step_without_drafts_costs_a_pass_and_the_host():
    prices = LearnedPrices(LearnedPass(lambda rows, _: 1.0), LOOKUP)
    for _ in range(30):
        prices.observe(undrafted(StepSeconds(scheduling=1.0, verifying=3.0, committing=1.0)))
    assert prices.undrafted(1) == prices.target(1) == pytest.approx(5.0)


def test_fixed_prices_never_change():
    prices = FixedPrices(lambda rows, context: rows + context, lambda num_requests, context: 3.0 * num_requests)
    prices.observe(StepOutcome([drafted(2)], seconds=StepSeconds(drafting=1.0, verifying=50.0)))
    assert (prices.target(2, 5), prices.draft_level(4, 2), FixedPrices(CostProfile({1: 1.0})).draft_level(0, 9)) == (
        7, 6.0, 0.0,
    )  # fmt: skip


NO_PRICES = [float("nan"), float("inf"), -1.0]


@pytest.mark.parametrize("price", [*NO_PRICES, 0.0])
def test_a_pass_must_cost_something(price):
    """NaN compares false with everything: a decision over it would take whatever stands first."""
    prices = FixedPrices(lambda *_: price)
    with pytest.raises(InvalidParameter, match="target: a price of"):
        prices.target(1)
    with pytest.raises(InvalidParameter, match="target: a price of"):
        Goodput(prices).budgets([DraftStats()] * 2, BatchStats(num_decodes=2))


@pytest.mark.parametrize("price", NO_PRICES)
def test_drafts_may_be_free_and_no_less(price):
    def one_row(rows, _context):
        return 1.0 + rows

    with pytest.raises(InvalidParameter, match="draft_step: a price of"):
        Goodput(FixedPrices(one_row, lambda *_: price)).budgets([DraftStats()] * 2, BatchStats(num_decodes=2))
    with pytest.raises(InvalidParameter, match="reading: a price of"):
        FixedPrices(one_row, reading=lambda _: price).reading(5)


def test_reading_a_prompt_for_the_first_time_is_no_draft_step():
    """Of a request's drafts the first reads the prompt, and one after a step without a draft reads what was said."""
    scheduler = Scheduler(SchedulerConfig(), PagePool(8, 16), Fixed(2))
    state = RequestState("r", [1] * 9, SamplingParams(max_tokens=30))
    scheduler.add(state)
    prices = LearnedPrices(LearnedPass(lambda rows, _: 1.0), MODEL)
    for drafts in (0, 2, 2, 0, 2, 2, 2):
        [grant] = scheduler.schedule(0.0).grants
        result = StepResult("r", grant.num_prefill_tokens, (7,), drafts, level_rejected=drafts > 0)
        [commit] = scheduler.update([result], 0.0)
        reading = 0.0 if commit.outcome.in_a_row else 99.0
        prices.observe(StepOutcome([commit.outcome], seconds=StepSeconds(drafting=reading + 1.0)))
    assert state.draft_stats.num_drafts == 5
    assert prices.draft_level(0, 1) == pytest.approx(0.5)


def test_reading_costs_its_share_of_large_passes_where_the_drafter_reads():
    passes = LearnedPass(lambda rows, _: 1 + 0.01 * rows)
    assert LearnedPrices(passes, replace(MODEL, reads=True)).reading(100) == pytest.approx(
        100 * MODEL.cost_ratio * 0.01
    )
    for traits in (MODEL, LOOKUP, replace(MODEL, reads=True, chooses=True)):
        assert LearnedPrices(passes, traits).reading(100) == 0


def test_what_a_drafter_has_not_read_is_counted():
    scheduler = Scheduler(SchedulerConfig(), PagePool(8, 16), Fixed(2))
    state = RequestState("r", [1] * 9, SamplingParams(max_tokens=30))
    scheduler.add(state)
    stats = state.draft_stats
    assert (stats.num_unread, stats.num_said, stats.num_left, stats.num_to_come) == (9, 0, 30, 30)
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 9, (5,))], 0.0)
    for drafted, tokens, unread in ((0, (7,), 10), (2, (7, 7, 8), 0), (0, (9,), 1)):
        scheduler.schedule(0.0)
        scheduler.update([StepResult("r", 0, tokens, drafted)], 0.0)
        assert stats.num_unread == unread
    assert (stats.num_said, stats.num_left) == (5, 25)
    state.withdraw()
    assert stats.num_unread == state.num_tokens == 15


def test_a_requests_own_draft_is_none_of_the_drafters():
    """It reads nothing for the drafter, which still has the prompt before it, and continues none of its drafts."""
    scheduler = Scheduler(SchedulerConfig(), PagePool(8, 16), Fixed(2))
    state = RequestState("r", [1] * 9, SamplingParams(max_tokens=30))
    scheduler.add(state)
    scheduler.schedule(0.0)
    scheduler.update([StepResult("r", 9, (5,))], 0.0)
    for own, unread, in_a_row in ((True, 12, False), (False, 0, False), (False, 0, True), (True, 3, False)):
        scheduler.schedule(0.0)
        [commit] = scheduler.update([StepResult("r", 0, (7, 7, 8), 2, is_own=own)], 0.0)
        assert (state.draft_stats.num_unread, commit.outcome.in_a_row) == (unread, in_a_row)
    assert state.draft_stats.num_drafts == 2 and state.draft_stats.last_budget == 2
