"""The compiled simulator against its plain twin, and what it reports."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import ControllerRules, Evaluator, Placement, Workload, simulate
from paceline.placement.simulator import components
from tests.placement.cases import make_case
from tests.placement.plain_simulator import plain_simulate

PLACEMENTS = {
    "one device each": [[1, 1, [0]], [1, 1, [1]], [1, 1, [2]], [1, 1, [3]]],
    "one pipeline for all": [[1, 4, [0, 1, 2, 3]]],
    "pairs that overlap": [[1, 2, [0, 1, 3]], [1, 2, [1, 2]]],
    "replicas and a model nowhere": [[1, 1, [0, 1, 2]], [1, 1, [0, 1, 2]], [1, 1, [0, 2]], [1, 1, [1, 2]]],
    "uneven groups": [[1, 2, [0, 1, 3]], [1, 1, [0, 1]], [1, 1, [2]]],
    "an idle group": [[1, 1, []], [1, 1, [0]]],
    "nothing": [],
}


@pytest.mark.parametrize("lists", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.parametrize("slo_scale", [1.3, 4.0])
def test_it_does_what_the_rules_say(lists, slo_scale):
    case, placement = make_case(slo_scale=slo_scale), Placement.from_lists(lists)
    result = simulate(placement, case, keep_latencies=True)
    expected = [np.nan if latency is None else latency for latency in plain_simulate(placement, case)]
    assert result.latencies is not None
    np.testing.assert_array_equal(result.latencies, expected)
    assert result.num_rejected == np.isnan(expected).sum()
    assert result.slo_attainment == pytest.approx(1 - result.num_rejected / result.num_requests, abs=1e-12)


@pytest.mark.parametrize("wrong", ["occupy", "first"])
def test_the_twin_would_notice_a_broken_rule(wrong):
    case, placement = make_case(), Placement.from_lists([[1, 2, [0, 1, 3]], [1, 2, [1, 2]]])
    assert plain_simulate(placement, case, wrong) != plain_simulate(placement, case)


@pytest.mark.parametrize("lists", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_components_add_up_to_the_whole(lists):
    evaluator, placement = Evaluator(make_case()), Placement.from_lists(lists)
    result = evaluator.simulate(placement)
    for _ in range(2):  # the second answer is the remembered one
        score = evaluator.score(placement)
        assert score.slo_attainment == result.slo_attainment
        assert score.mean_latency_served == pytest.approx(result.mean_latency_served, rel=1e-12)
        np.testing.assert_array_equal(score.served + score.unserved, evaluator.requests_of)
        np.testing.assert_allclose(
            score.busy / evaluator.workload.duration, np.nanmean(result.utilization, axis=1) if lists else [], rtol=1e-6
        )


@pytest.mark.parametrize("rules", [ControllerRules(), ControllerRules(batch_sizes=(1, 2))])
def test_a_tally_gives_up_at_the_first_rejection_too_many(rules):
    evaluator, groups = Evaluator(make_case(), rules=rules), Placement.from_lists([[1, 1, [0, 1]]]).groups
    outcome = evaluator.component(groups)
    served, rejected = int(outcome.served.sum()), int(outcome.rejected.sum())
    assert rejected > 0
    assert evaluator.tally(groups, rejected) == (served, outcome.latency_sum, served + rejected)
    assert np.isnan(evaluator.tally(groups, rejected - 1).latency_sum)


def test_components_are_joined_through_shared_models():
    groups = Placement.from_lists([[1, 1, [0]], [1, 1, [2]], [1, 1, [0, 1]], [1, 1, []], [1, 1, [1, 3]]]).groups
    assert sorted(components(groups)) == [(0, 2, 4), (1,), (3,)]


def test_a_rejected_request_occupies_nothing():
    case = make_case(num_small=1, num_large=0, slo_scale=1.5)
    burst = Workload(np.array([0.0, 0.01, 0.02, 0.115]), np.zeros(4, np.int32))
    result = simulate(Placement.from_lists([[1, 1, [0]]]), case, burst, keep_latencies=True)
    assert result.latencies is not None
    assert np.isnan(result.latencies).tolist() == [False, True, True, False]


def test_reports_by_model_and_group():
    result = simulate(Placement.from_lists([[1, 1, [0]], [1, 2, [1, 3]]]), make_case(), keep_latencies=True)
    assert result.routes is not None and result.latencies is not None
    served = [int((result.routes == group).sum()) for group in (0, 1)]
    assert result.group_requests.tolist() == served
    assert result.model_attainment[2] == 0
    assert ((result.routes >= 0) == ~np.isnan(result.latencies)).all()
    assert np.isnan(result.utilization[0, 1]) and 0 < result.utilization[1, 1] <= 1.01
    assert result.p99_latency_served == np.sort(result.latencies[result.routes >= 0])[int(sum(served) * 0.99)]


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ([[1, 4, [0]], [1, 1, [0]]], "need 5 devices, the cluster has 4"),
        ([[1, 1, [4]]], "holds model 4, there are 4"),
        ([[1, 1, [0, 3]]], "on a device, the budget is"),
        ([[2, 1, [0]]], "not profiled"),
        ([[1, 1, [0, 0]]], "holds \\[0, 0\\]"),
        ([[1, 1]], "cannot be read"),
    ],
)
def test_what_the_cluster_cannot_hold_is_refused(lists, problem):
    with pytest.raises(InvalidParameter, match=problem):
        simulate(Placement.from_lists(lists), make_case())
