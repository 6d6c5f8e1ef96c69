"""Batches: off they change nothing, on they do what the rule says."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import (
    Case,
    Cluster,
    ControllerRules,
    Evaluator,
    ModelProfile,
    ParallelConfig,
    PlacedModel,
    Placement,
    Stages,
    Workload,
)
from paceline.placement.simulator.batched import run_batched
from tests.placement.cases import make_case

TABLE = {2: (1.2,), 4: (1.6,)}
BATCHES = ControllerRules(overhead=0.0, stage_overhead=0.0, batch_sizes=(1, 2, 4))


def latencies(times, slo=100.0, models=None, rules=BATCHES, groups=((1, 1, [0, 1]),)):
    """Of requests for two models of one second, whose batches of 2 and 4 take 1.2 and 1.6."""
    profile = ModelProfile("one", {ParallelConfig(): Stages((1.0,), (1.0,), TABLE)})
    placed = tuple(PlacedModel(name, "one", slo=slo) for name in "ab")
    workload = Workload(np.array(times), np.array(models or [0] * len(times)))
    case = Case("batches", Cluster(2, 2.0), placed, {"one": profile}, workload)
    result = Evaluator(case, rules=rules).simulate(Placement.from_lists(groups), keep_latencies=True)
    assert result.latencies is not None
    return result


def test_those_who_wait_go_together():
    result = latencies([0.0, 0.1, 0.2, 0.3, 0.4])
    assert result.latencies == pytest.approx([1.0, 2.5, 2.4, 2.3, 2.2])  # 1 alone, then 4 from 1.0 to 2.6
    assert result.utilization[0, 0] * 0.4 == pytest.approx(1.0 + 1.6)


def test_no_size_is_padded():
    result = latencies([0.0, 0.1, 0.2, 0.3])  # three wait: two start, the third follows
    assert result.latencies == pytest.approx([1.0, 2.1, 2.0, 2.9])


def test_a_batch_holds_one_model():
    result = latencies([0.0, 0.1, 0.2, 0.3], models=[0, 0, 1, 0])
    assert result.latencies == pytest.approx([1.0, 2.1, 3.0, 1.9])  # 1 and 3 overtake 2


def test_only_requests_that_are_there_start():
    result = latencies([0.0, 0.5, 1.1])
    assert result.latencies == pytest.approx([1.0, 1.5, 1.9])


def test_a_deadline_keeps_batches_small():
    assert latencies([0.0, 0.1, 0.2], slo=2.0).latencies == pytest.approx([1.0, 1.9, np.nan], nan_ok=True)
    assert latencies([0.0, 0.1, 0.2], slo=2.2).latencies == pytest.approx([1.0, 2.1, 2.0])


@pytest.mark.parametrize("slo_scale", [1.5, 4.0])
@pytest.mark.parametrize("lists", [[[1, 4, [0, 1, 2, 3]]], [[1, 2, [0, 3]], [1, 1, [1]], [1, 1, [2]]]])
def test_batches_of_one_are_no_batches(lists, slo_scale):
    evaluator = Evaluator(make_case(slo_scale=slo_scale))
    plain = evaluator.simulate(Placement.from_lists(lists), keep_latencies=True)
    replicas = evaluator._replicas.make(Placement.from_lists(lists).groups)
    times, models = evaluator.workload.times, evaluator.workload.models
    counts = np.zeros((2, len(replicas.group)), np.int64)
    kept, routes = np.full(len(times), np.nan), np.full(len(times), -1, np.int32)
    args = (
        times,
        models,
        evaluator._slos,
        replicas.first_replica,
        replicas.group,
        replicas.latency,
        np.ones(1, np.int64),
    )
    busy = run_batched(*args, replicas.num_stages, evaluator.rules.overhead, counts[0], counts[1], kept, routes)
    np.testing.assert_array_equal(kept, plain.latencies)
    np.testing.assert_allclose(busy / evaluator.workload.duration, np.nan_to_num(plain.utilization), rtol=1e-6)


def test_batches_serve_more_under_pressure():
    arrivals = np.arange(400) * 0.5
    alone = ControllerRules(overhead=0.0, stage_overhead=0.0, batch_sizes=(1,))
    assert latencies(arrivals, slo=5.0).slo_attainment == 1.0
    assert latencies(arrivals, slo=5.0, rules=alone).slo_attainment < 0.6


def test_two_groups_share_many_requests():
    result = latencies([0.0, 0.0, 0.5, 0.5], groups=((1, 1, [0]), (1, 1, [0])))
    assert result.routes is not None and np.bincount(result.routes).tolist() == [2, 2]


def test_unprofiled_sizes_are_not_used():
    rules = ControllerRules(overhead=0.0, stage_overhead=0.0, batch_sizes=(1, 3))
    assert latencies([0.0, 0.1, 0.2, 0.3], rules=rules).latencies == pytest.approx([1.0, 1.9, 2.8, 3.7])


@pytest.mark.parametrize("sizes", [(), (2, 4), (1, 4, 2), (1, 1)])
def test_bad_sizes_are_refused(sizes):
    with pytest.raises(InvalidParameter, match="does not rise from 1"):
        ControllerRules(batch_sizes=sizes)
