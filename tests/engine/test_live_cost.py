"""What a pass costs, learned from passes."""

import pytest

from paceline.engine.live_cost import LearnedCost
from paceline.scheduling import CostProfile
from paceline.types import SamplingParams
from tests.engine.conftest import run_all


def test_measured_points_are_returned_and_joined_by_lines():
    cost = LearnedCost()
    cost.observe(1, 10.0)
    cost.observe(5, 14.0)
    assert cost(1) == 10
    assert cost(3) == pytest.approx(12, rel=0.01)
    assert cost(5) == pytest.approx(14)


def test_beyond_the_points_costs_rise_by_the_prior_slope():
    cost = LearnedCost()
    assert cost(9) > cost(1) > 0
    cost.observe(4, 12.0)
    assert cost(1) < 12 < cost(8)


def test_an_average_moves_slowly_and_outliers_count_less():
    cost = LearnedCost()
    cost.observe(1, 10.0)
    cost.observe(1, 1000.0)
    assert 10 < cost(1) <= 12
    for _ in range(50):
        cost.observe(1, 8.0)
    assert cost(1) == pytest.approx(8, rel=0.01)


def test_draft_steps_are_free_until_measured():
    cost = LearnedCost()
    assert cost.draft_seconds(4) == 0
    cost.observe_draft(0, 3.0)
    assert cost.draft_seconds(4) == 0
    cost.observe_draft(2, 6.0)
    assert cost.draft_seconds(4) == 3


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
