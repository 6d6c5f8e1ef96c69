"""Explanations against cases small enough to know the answer."""

import json

import numpy as np
import pytest

from paceline.placement import Case, Cluster, ModelProfile, ParallelConfig, PlacedModel, Placement, Stages, Workload
from paceline.placement.explain import explain
from paceline.theory.queueing import md1_wait
from tests.placement.cases import make_case

PROFILE = ModelProfile(
    "one",
    {
        ParallelConfig(1, 1): Stages((0.1,), (2.0,)),
        ParallelConfig(1, 2): Stages((0.05, 0.05), (1.0, 1.0)),
        ParallelConfig(2, 1): Stages((0.06,), (1.0,)),
    },
)


def case_of(times, models, slos=(1.0, 1.0), mem=4.0, num_devices=2) -> Case:
    placed = tuple(PlacedModel(f"m{i}", "one", slo=slo) for i, slo in enumerate(slos))
    workload = Workload(np.array(times), np.array(models))
    return Case("tiny", Cluster(num_devices, mem), placed, {"one": PROFILE}, workload)


def test_each_lost_request_has_one_reason():
    """m0 asks twice at once and can wait for none; m1's deadline is below its pass; m2 is nowhere."""
    case = case_of([0, 0, 1, 2, 4], [0, 0, 1, 2, 0], slos=(0.13, 0.1, 1.0))
    lost = explain(case, Placement.from_lists([[1, 1, [0, 1]]])).models
    shares = [[m.attainment, m.no_replica, m.too_slow, m.queueing] for m in lost]
    np.testing.assert_allclose(shares, [[2 / 3, 0, 0, 1 / 3], [0, 0, 1, 0], [0, 1, 0, 0]])


def test_load_and_waiting_of_a_poisson_queue():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1 / 6.0, 30_000))
    case = case_of(times, np.arange(30_000) % 2, slos=(1e9, 1e9))
    (group,) = explain(case, Placement.from_lists([[1, 1, [0, 1]]])).groups
    seconds = 0.1 * 1.009
    assert group.load == pytest.approx(group.rate * seconds)
    assert group.load == pytest.approx(0.6, rel=0.03)
    assert group.estimated_wait == pytest.approx(md1_wait(group.rate, seconds), rel=1e-6)
    assert group.simulated_wait == pytest.approx(group.estimated_wait, rel=0.06)
    assert group.cv == pytest.approx(1, abs=0.03)
    assert group.model_cv == pytest.approx(0.5**0.5, abs=0.03)  # every second arrival: gaps of two


def test_an_overloaded_queue_has_no_estimate_but_a_load():
    case = case_of(np.arange(100) * 0.05, np.zeros(100), slos=(1e9,))
    found = explain(case, Placement.from_lists([[1, 1, [0]]]))
    assert found.groups[0].load > 2
    record = json.loads(json.dumps(found.to_record()))
    assert record["groups"][0]["estimated_wait"] is None


def test_what_a_replica_buys_is_what_goes_without_it():
    case = case_of([0, 0, 1, 1, 2], [0, 0, 0, 0, 1], slos=(0.15, 0.15))
    buys = {(r.group, r.model): r for r in explain(case, Placement.from_lists([[1, 1, [0, 1]], [1, 1, [0]]])).replicas}
    assert buys[1, "m0"].attainment == pytest.approx(2 / 5)  # of two at once, one would miss
    assert buys[0, "m1"].attainment == pytest.approx(1 / 5)
    assert buys[0, "m0"].attainment == pytest.approx(2 / 5)


def test_what_a_split_buys_against_every_other_use_of_its_devices():
    """Four requests for m0 at once: a pipeline serves all, and m1. One by one m0 takes both devices."""
    case = case_of([0, 0, 0, 0, 9], [0, 0, 0, 0, 1], slos=(0.28, 0.28), mem=2.0)
    splits = explain(case, Placement.from_lists([[1, 2, [0, 1]]])).splits
    buys = {split.instead: split.attainment for split in splits}
    assert buys == pytest.approx({"2 x 1": 0.0, "single devices": 1 / 5})


def test_interference_is_attainment_without_the_other():
    """m1 always comes just before m0 and makes it late; m0 never hurts m1; m2 has a group of its own."""
    times = np.concatenate([[i, i + 0.01, i + 0.02] for i in range(10)])
    case = case_of(times, [1, 0, 2] * 10, slos=(0.13, 0.13, 0.13))
    found = explain(case, Placement.from_lists([[1, 1, [0, 1]], [1, 1, [2]]])).interference
    assert found.shared == pytest.approx((0, 1, 1))
    assert found.alone == pytest.approx((1, 1, 1))
    assert found.attainment[0] == pytest.approx((0, 1, 0))
    assert found.attainment[1] == pytest.approx((0, 0, 0))
    assert found.attainment[2] == pytest.approx((0, 0, 0))


def test_interference_in_seconds():
    """With no deadline the second of two requests waits out the first: (1 - 0.01 / 0.1) of its pass."""
    case = case_of([0, 0.01], [1, 0], slos=(1e9, 1e9))
    found = explain(case, Placement.from_lists([[1, 1, [0, 1]]])).interference
    assert found.latency[0] == pytest.approx((0, 0.1009 - 0.01))
    assert found.latency[1] == pytest.approx((0, 0))


def test_every_share_of_a_mixed_case_adds_up_and_progress_ends():
    case, seen = make_case(duration=50.0), []
    placement = Placement.from_lists([[1, 2, [0, 1, 3]], [1, 1, [1, 2]]])
    found = explain(case, placement, lambda done, total: seen.append((done, total)))
    for model in found.models:
        assert model.attainment + model.no_replica + model.too_slow + model.queueing == pytest.approx(1)
    assert [done for done, _ in seen] == list(range(1, seen[-1][1] + 1))


def test_an_empty_placement_serves_nobody():
    found = explain(case_of([0.0, 1.0], [0, 1]), Placement())
    assert [model.no_replica for model in found.models] == [1, 1]
    assert found.groups == found.replicas == found.splits == ()
