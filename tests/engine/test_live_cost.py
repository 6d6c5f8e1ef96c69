"""What a pass costs, learned from passes."""

import numpy as np
import pytest

from paceline.engine.live_cost import LearnedCost, roofline
from paceline.scheduling import CostProfile
from paceline.types import SamplingParams
from tests.engine.conftest import run_all


def test_measured_passes_are_learned_and_joined_by_lines():
    cost = LearnedCost(lambda rows, _: 1.0)
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
    cost = LearnedCost(lambda rows, _: 1 + rows)
    for _ in range(100):
        cost.observe(4, 10.0)
    assert cost(1) == pytest.approx(4, rel=0.1)
    assert cost(512) == pytest.approx(1026, rel=0.1)


def test_the_first_pass_may_have_read_weights_from_disk():
    cost = LearnedCost(lambda rows, _: float(rows))
    for seconds in (50.0, 1.0, 1.2):
        cost.observe(1, seconds)
    assert cost(1) == pytest.approx(1) and cost(64) == pytest.approx(64)


def test_the_first_drafts_may_have_read_weights_from_disk():
    cost = LearnedCost()
    for seconds in (50.0, 1.0):
        cost.observe_draft(1, seconds)
        assert cost.draft_seconds(1) == 0
    cost.observe_draft(1, 1.2)
    assert cost.draft_seconds(1) == 1


@pytest.mark.parametrize("rows", [1, 3, 5000, 1 << 20])
def test_any_number_of_rows_has_a_price(rows):
    cost = LearnedCost(roofline(8))
    cost.observe(rows, 2.0)
    assert cost(rows) == pytest.approx(2)


def test_a_slower_machine_is_slower_for_every_pass():
    """Only small passes are seen after the machine slowed down; large ones are taken to have slowed down alike."""
    cost = LearnedCost(lambda rows, _: float(rows))
    for _ in range(100):
        for rows in (1, 64):
            cost.observe(rows, rows * 1.0)
    for _ in range(100):
        cost.observe(1, 1.5)
    assert cost(1) == pytest.approx(1.5, rel=0.01)
    assert cost(64) > 64 * 1.25


def test_noise_does_not_bend_the_price_of_a_row():
    rng, cost = np.random.default_rng(0), LearnedCost(roofline(8))
    for _ in range(2000):
        rows = int(rng.integers(32, 49))
        cost.observe(rows, roofline(8)(rows, 0) * float(np.exp(0.1 * rng.standard_normal())))
    slopes = [(cost(rows + 1) - cost(rows)) / cost(rows) * rows for rows in range(32, 48)]
    assert all(0.6 < slope < 1.4 for slope in slopes)


def test_an_average_moves_slowly_and_outliers_count_less():
    cost = LearnedCost()
    for seconds in (10.0, 10.0, 10.0, 1000.0):
        cost.observe(1, seconds)
    assert 10 < cost(1) <= 16
    for _ in range(100):
        cost.observe(1, 8.0)
    assert cost(1) == pytest.approx(8, rel=0.01)


def test_draft_steps_are_free_until_measured():
    cost = LearnedCost()
    assert cost.draft_seconds(4) == 0
    cost.observe_draft(0, 3.0)
    assert cost.draft_seconds(4) == 0
    for _ in range(3):
        cost.observe_draft(2, 6.0)
    assert cost.draft_seconds(4) == 3
    assert cost.whole_draft_seconds(4) == 6


def test_a_profile_gives_the_shape_and_passes_the_level():
    profile = CostProfile.by_context({0: {1: 1.0, 9: 2.0}, 100: {1: 3.0, 9: 5.0}})
    cost = LearnedCost(profile)
    assert cost(9, 100) == 5
    cost.observe(9, 10.0, context=100)
    assert cost(9, 0) == pytest.approx(4)
    assert cost(1, 100) == pytest.approx(6)


def test_draft_steps_follow_the_draft_models_own_profile():
    cost = LearnedCost()
    cost.draft_prior = CostProfile({1: 1.0, 4: 2.0})
    assert cost.draft_seconds(4) == 2
    for _ in range(3):
        cost.observe_draft(3, 9.0, num_requests=1)
    assert cost.draft_seconds(1) == pytest.approx(3)
    assert cost.draft_seconds(4) == pytest.approx(6)


def test_reading_a_prompt_for_the_first_time_is_no_draft_step(engine_for, monkeypatch):
    seen = []
    monkeypatch.setattr(LearnedCost, "observe_draft", lambda self, steps, *_: seen.append(steps))
    draft = {"method": "draft_model", "model": "random-1", "num_draft_tokens": 2, "policy": "fixed"}
    output = run_all(engine_for(draft), ["abc"], SamplingParams(temperature=0, max_tokens=12))[0]
    steps_with_drafts = [steps for steps in seen if steps]
    assert len(steps_with_drafts) == output.stats.num_drafts - 1
