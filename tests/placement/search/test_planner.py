"""Plans: the same for the same seed, best so far when stopped, refused when the case makes no sense."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import Evaluator, Placement, Workload
from paceline.placement.search import POLICIES, plan
from paceline.placement.search.search import Search, canonical, empty_groups
from tests.placement.cases import make_case


def hard_case(**options):
    return make_case(**({"num_small": 6, "num_large": 2, "num_devices": 8, "rate": 9.0, "duration": 100.0} | options))


def test_same_seed_same_plan():
    first, second = (plan(hard_case(), seed=3, effort=2_000_000) for _ in range(2))
    assert first.placement == second.placement
    assert [step[1:] for step in first.history] == [step[1:] for step in second.history]


def test_more_effort_never_ends_worse_than_its_starts_and_effort_is_kept_to():
    case = hard_case()
    little, much = (plan(case, effort=effort) for effort in (100_000, 3_000_000))
    assert little.slo_attainment < much.slo_attainment
    assert little.planning_seconds < much.planning_seconds


def test_history_only_rises_and_ends_with_the_plan():
    found = plan(hard_case(), effort=1_000_000)
    scores = [(step.slo_attainment, -step.mean_latency_served) for step in found.history]
    assert scores == sorted(scores)
    assert found.history[-1].slo_attainment == found.slo_attainment
    assert [step.seconds for step in found.history] == sorted(step.seconds for step in found.history)


def test_a_time_budget_ends_the_search_with_the_best_so_far():
    found = plan(hard_case(), effort=10**12, time_budget=0.3)
    assert not found.finished
    assert found.slo_attainment == found.history[-1].slo_attainment > 0
    assert 0.3 <= found.planning_seconds < 5


def test_an_interrupt_ends_the_search_with_the_best_so_far():
    calls = []

    def interrupt(share, best):
        calls.append((share, best))
        if len(calls) == 5:
            raise KeyboardInterrupt

    found = plan(hard_case(), progress=interrupt)
    assert not found.finished
    assert found.slo_attainment == calls[-1][1] > 0


def test_progress_goes_from_nothing_to_all():
    shares = []
    plan(hard_case(), effort=2_000_000, progress=lambda share, best: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0 and len(shares) > 5


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.0])
def test_giving_up_early_never_changes_a_score(share):
    """A placement scored under a demand has its true score, or None exactly when it serves too few."""
    case = hard_case(duration=40.0)
    evaluator = Evaluator(case)
    for seed in range(4):
        found = plan(case, effort=200_000, seed=seed).placement
        served = evaluator.score(found).num_served
        demand = served / share
        score = Search(case).score(found.groups, at_least=demand)
        assert (score is None) == (served < demand)
        assert score is None or score.served == served


def test_the_simulator_stops_at_the_limit_of_rejections():
    case = hard_case(duration=40.0)
    groups = plan(case, "mp-round-robin").placement.groups
    evaluator = Evaluator(case)
    whole = evaluator.tally(groups)
    assert whole.simulated - whole.served > 10
    stopped = evaluator.tally(groups, max_rejected=10)
    assert np.isnan(stopped.latency_sum) and stopped.simulated < whole.simulated


def test_groups_in_another_order_are_one_placement():
    first = plan(hard_case(), "mp-search").placement.groups
    assert canonical(first) == canonical(reversed(first))
    assert len(Search(hard_case()).scored((*first, *empty_groups([first[0].parallel])))) == 2


def test_a_model_that_cannot_be_served_is_refused_or_left_out():
    case = hard_case()
    models = (*case.models[:-1], replace(case.models[-1], slo=0.05))
    case = replace(case, models=models)
    with pytest.raises(InvalidParameter, match=r"slo: 0.05 s for model 'm7'"):
        plan(case)
    found = plan(case, "mp-search", allow_unplaceable=True)
    assert list(found.unplaceable) == [7]
    assert found.placement.replicas(8)[7] == 0 < found.slo_attainment


@pytest.mark.parametrize("policy", POLICIES)
def test_where_nobody_asks_for_what_can_be_placed_the_plan_is_empty(policy):
    case = make_case(num_small=2, num_large=1, num_devices=8)
    models = tuple(replace(model, slo=0.05 if model.profile_type == "large" else model.slo) for model in case.models)
    only_large = Workload(np.arange(5.0), np.full(5, 2, np.int32))
    try:
        found = plan(replace(case, models=models, workload=only_large), policy, allow_unplaceable=True)
    except InvalidParameter as refused:  # groups of eight devices were not profiled
        assert policy == "mp-greedy-8" and refused.field == "policy"
        return
    assert found.finished and found.slo_attainment == 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"time_budget": 0.0}, "time_budget"),
        ({"effort": 0}, "effort"),
        ({"window": 0.0, "policy": "clockwork++"}, "window"),
        ({"window": 1e-9, "policy": "clockwork++"}, "window"),
        ({"window": 1e-9, "policy": "replan"}, "window"),
    ],
)
def test_budgets_must_be_positive(options, field):
    with pytest.raises(InvalidParameter) as refused:
        plan(make_case(), **options)
    assert refused.value.field == field


def test_no_requests_are_refused():
    nothing = Workload(np.empty(0), np.empty(0, np.int32))
    with pytest.raises(InvalidParameter, match="arrivals"):
        plan(make_case().with_workload(nothing))


def test_an_empty_placement_serves_nothing():
    assert Evaluator(make_case()).score(Placement()).num_served == 0
