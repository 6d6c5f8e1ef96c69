"""Rules of serving belong to a case: plans, simulations and maps all follow them, and profiled batches are used."""

from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import (
    Case,
    Cluster,
    ControllerRules,
    Evaluator,
    Group,
    ModelProfile,
    ParallelConfig,
    PlacedModel,
    Placement,
    Stages,
    simulate,
)
from paceline.placement.arrivals import draw_for_models
from paceline.placement.case_file import case_from
from paceline.placement.cluster import DeviceType
from paceline.placement.coplacement import resolve
from paceline.placement.drafting import Drafting
from paceline.placement.explain import explain
from paceline.placement.parallel_map import parallel_map, scaled
from paceline.placement.search import NAMES, plan
from paceline.placement.search.bounds import Bounds, may_hold
from paceline.placement.search.device_types import only
from paceline.placement.search.facts import Facts
from paceline.placement.search.fewest import fewest_devices
from paceline.placement.search.honest import held_out
from paceline.placement.search.policies import WINDOWED
from paceline.placement.search.sampling import windows_of
from tests.placement.cases import make_case

TABLE = {2: 0.11, 4: 0.13, 8: 0.17}
"""Seconds of a batch on one device; a request alone takes 0.1 s."""
ONE, TWO = ParallelConfig(1, 1), ParallelConfig(1, 2)
ALONE = ControllerRules(batch_sizes=(1,))


def batched_case(rate=15.0, slo=2.0, num_devices=1, num_models=1, duration=200.0, seed=0, mem=1.0, **rules) -> Case:
    """Models of 0.1 s with the batches of `TABLE`, on one device or a pipeline of two."""
    entries = {
        ONE: Stages((0.1,), (1.0,), {size: (seconds,) for size, seconds in TABLE.items()}),
        TWO: Stages((0.052,) * 2, (0.5,) * 2, {size: (0.52 * seconds,) * 2 for size, seconds in TABLE.items()}),
    }
    models = tuple(PlacedModel(f"m{m}", "t", rate / num_models, 2.0, slo) for m in range(num_models))
    workload = draw_for_models(models, duration, seed)
    profiles = {"t": ModelProfile("t", entries)}
    return Case("batched", Cluster(num_devices, mem), models, profiles, workload, rules=ControllerRules(**rules))


def test_profiled_batches_are_planned_with():
    case, one = batched_case(), Placement.from_lists([[1, 1, [0]]])
    found, alone = plan(case), plan(case.with_rules(ALONE))
    assert case.batch_sizes == (1, 2, 4, 8) and case.with_rules(ALONE).batch_sizes == (1,)
    assert found.slo_attainment == simulate(one, case).slo_attainment == 1.0
    assert alone.slo_attainment == Evaluator(case, rules=ALONE).simulate(one).slo_attainment < 0.8


def test_fewer_devices_reach_an_attainment_with_batches():
    def needed(case):
        def planned(smaller):
            found = plan(smaller)
            return found.slo_attainment, found

        return fewest_devices(case, 0.99, planned).num_devices

    case = batched_case(num_devices=4)
    assert needed(case) == 1
    assert needed(case.with_rules(ALONE)) > 1


def test_what_serving_adds_can_be_changed():
    case = make_case(num_small=1, num_large=0, num_devices=2, slo_scale=1.0)  # a deadline of a pass, and no more
    with pytest.raises(InvalidParameter, match="slo"):
        plan(case, "sr-greedy")
    assert plan(case.with_rules(ControllerRules(0.0, 0.0)), "sr-greedy").slo_attainment > 0
    with pytest.raises(InvalidParameter, match="slo"):  # the answer alone makes it late, and so do stages alone
        plan(case.with_rules(ControllerRules(0.001, 0.0)), "sr-greedy")
    with pytest.raises(InvalidParameter, match="slo"):
        plan(case.with_rules(ControllerRules(0.0, 0.001)), "sr-greedy")


@pytest.mark.parametrize("policy", [name for name in NAMES if name != "mp-greedy-4" and name != "mp-greedy-8"])
def test_every_policy_scores_by_the_rules_of_its_case(policy):
    case = batched_case(rate=40.0, num_devices=2, num_models=2, duration=60.0, overhead=0.0, stage_overhead=0.02)
    found = plan(case, policy, effort=200_000, window=20.0 if policy in WINDOWED else None)
    again = Evaluator(replace(case, rules=ControllerRules()), rules=case.rules).simulate(found.placement)
    assert again.slo_attainment == found.result.slo_attainment
    by_others = Evaluator(case, rules=ALONE).simulate(found.placement)
    assert by_others.slo_attainment < found.result.slo_attainment  # so the rules do matter here


def test_a_held_out_half_is_judged_by_the_rules():
    case = batched_case()
    assert held_out(case).test == 1.0 > held_out(case.with_rules(ALONE)).test


def every_placement(case):
    facts = Facts(Evaluator(case))
    for splits in ((ONE,), (TWO,), (ONE, ONE)):
        kinds = [(split, splits.count(split)) for split in sorted(set(splits))]
        for sets in product(*(combinations_with_replacement(may_hold(facts, s), count) for s, count in kinds)):
            chosen = [models for each in sets for models in each]
            for order in (chosen, chosen[::-1]):
                yield splits, tuple(Group(split, models) for split, models in zip(splits, order, strict=True))


class BatchOfOneBounds(Bounds):
    """As if every request kept a group busy for a pass of its own."""

    def _least_work(self, model, kinds):
        work = [self._facts._evaluator.stage_seconds(model, split).mean() for split in kinds]
        return float(min(work))


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_for_batches(seed):
    case = batched_case(rate=60.0, num_devices=2, num_models=2, duration=40.0, slo=0.6, seed=seed, mem=2.0)
    evaluator, bounds, wrong = Evaluator(case), Bounds(Facts(Evaluator(case))), BatchOfOneBounds(Facts(Evaluator(case)))
    served = [(splits, evaluator.score(Placement(groups)).num_served) for splits, groups in every_placement(case)]
    assert all(count <= bounds.served(splits) for splits, count in served)
    assert any(count > wrong.served(splits) for splits, count in served)
    assert plan(case, "exact").slo_attainment == max(count for _, count in served) / case.workload.num_requests


def test_variants_of_a_case_keep_its_rules():
    rules = ControllerRules(0.5, 0.25, (1, 2))
    case = batched_case().with_rules(rules)
    devices = DeviceType("d", 1, 9.0)
    typed = replace(
        case,
        cluster=Cluster.of_types([devices]),
        profiles={"t": ModelProfile("t", {replace(s, device="d"): e for s, e in case.profiles["t"].entries.items()})},
    )
    drafted = replace(case, drafts={0: Drafting("t", 10, 0.5)})
    sampled = windows_of(batched_case(duration=600.0, slo=0.1).with_rules(rules), 1000)
    assert sampled is not None
    variants = [
        case.with_workload(case.workload),
        case.scale_slo(2),
        case.scale_rate(2),
        case.with_devices(3),
        sampled.case,
        only(typed, devices, typed.workload),
        scaled(case, {"memory": 2.0, "cv": 0.5}, 0),
        resolve(drafted, {0: "plain"}),
    ]
    assert all(variant.rules == rules for variant in variants)


def test_batches_that_no_model_of_the_case_has_are_none():
    case = make_case()
    assert case.batch_sizes == case.with_rules(ControllerRules(batch_sizes=(1, 2))).batch_sizes == (1,)
    assert batched_case(batch_sizes=(1, 3, 4)).batch_sizes == (1, 4)


def test_a_map_follows_the_rules():
    case = batched_case(rate=30.0, num_devices=2, num_models=2, duration=60.0)
    both = [
        parallel_map(each, ("rate", "slo"), {"rate": (1.0,), "slo": (1.0,)}) for each in (case, case.with_rules(ALONE))
    ]
    assert both[0].parallel[0][0] > both[1].parallel[0][0] and both[0].replicated[0][0] > both[1].replicated[0][0]


def test_an_explanation_counts_the_seconds_of_the_best_batch():
    case, one = batched_case(overhead=0.0, stage_overhead=0.0), Placement.from_lists([[1, 1, [0]]])
    (group,), (model,) = explain(case, one).groups, explain(case, one).models
    assert group.load == pytest.approx(group.rate * TABLE[8] / 8) == model.load
    assert np.isnan(group.estimated_wait) and group.simulated_wait > 0
    alone = explain(case.with_rules(ControllerRules(0.0, 0.0, (1,))), one)
    assert alone.groups[0].load == pytest.approx(alone.groups[0].rate * 0.1) and alone.groups[0].load > 1


FIELDS = {
    "num_devices": 1,
    "mem_budget": 1e9,
    "models": [{"name": "a", "type": "t", "rate": 15.0, "slo": 2.0}],
    "profiles": {"t": [{"latency": [0.1], "weight_mem": [1e9], "batch_latency": {2: [0.11], 4: [0.13]}}]},
    "duration": 100.0,
}


def read(tmp_path, **changes):
    return case_from(FIELDS | changes, tmp_path, "case")


def test_a_case_file_says_the_rules(tmp_path):
    assert read(tmp_path).rules == ControllerRules() and read(tmp_path).batch_sizes == (1, 2, 4)
    given = read(tmp_path, overhead=0, stage_overhead="0.5", batch_sizes=[1, 4])
    assert given.rules == ControllerRules(0.0, 0.5, (1, 4))
    assert read(tmp_path, batch_sizes=None).rules == ControllerRules()


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"overhead": -1}, "overhead", "not 0 or more"),
        ({"overhead": "soon"}, "overhead", "soon"),
        ({"stage_overhead": float("inf")}, "stage_overhead", "finite"),
        ({"batch_sizes": [1, 8]}, "batch_sizes", "batches of 8"),
        ({"batch_sizes": [2, 4]}, "batch_sizes", "rise from 1"),
        ({"batch_sizes": [1, 1.5]}, "batch_sizes", "1.5"),
        ({"batch_sizes": 4}, "batch_sizes", "4"),
        ({"batch_size": [1, 2]}, "case", "batch_size"),
    ],
)
def test_rules_that_cannot_be_are_named(tmp_path, changes, field, problem):
    with pytest.raises(InvalidParameter) as caught:
        read(tmp_path, **changes)
    assert caught.value.field == field and problem in str(caught.value)


TOKENS = {"t": [{"weight_mem": [1e8], "tokens": {"seconds": {0: {1: 0.01, 16: 0.02}}}}]}


def test_answers_of_language_models_take_the_overhead_too(tmp_path):
    one = Placement.from_lists([[1, 1, [0]]])
    models = [{"name": "a", "type": "t", "rate": 0.1, "slo": 9, "prompt_tokens": 4, "output_tokens": 3}]
    quick, slow = (
        simulate(one, read(tmp_path, profiles=TOKENS, models=models, overhead=overhead), keep_latencies=True)
        for overhead in (0.0, 0.5)
    )
    np.testing.assert_allclose(slow.latencies - quick.latencies, 0.5)


@pytest.mark.parametrize("changes", [{"batch_sizes": [1, 2]}, {"stage_overhead": 0.0}])
def test_other_rules_are_for_requests_of_one_pass(tmp_path, changes):
    with pytest.raises(InvalidParameter, match="tokens") as caught:
        read(tmp_path, profiles=TOKENS, **changes)
    assert caught.value.field in changes
