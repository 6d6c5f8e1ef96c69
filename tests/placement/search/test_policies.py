"""The policies against each other and against brute force written without any of their code."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import (
    Case,
    Cluster,
    Evaluator,
    Group,
    ModelProfile,
    ParallelConfig,
    PlacedModel,
    Placement,
    Stages,
    Workload,
    validate,
)
from paceline.placement.cluster import DeviceType
from paceline.placement.search import NAMES, POLICIES, plan
from paceline.placement.search.baselines import clockwork
from paceline.placement.search.exact import count_placements, enumerate_all
from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.greedy import beam_greedy
from paceline.placement.search.honest import held_out
from paceline.placement.search.policies import BEAMS, WINDOWED
from paceline.placement.search.replication import replicate, single_devices
from paceline.placement.search.search import Search, empty_groups
from tests.placement.cases import GB, make_case

ONE, TWO = ParallelConfig(1, 1), ParallelConfig(1, 2)


def tiny_case(seed=0, **options):
    options = {
        "num_small": 2,
        "num_large": 1,
        "num_devices": 3,
        "rate": 8.0,
        "slo_scale": 2.0,
        "duration": 60.0,
    } | options
    return make_case(seed=seed, **options)


def every_placement(case):
    """All of them, empty groups, idle devices, useless replicas and every order of groups included."""
    subsets = [models for size in range(4) for models in combinations(range(len(case.models)), size)]
    for splits in ((), (1,), (2,), (1, 1), (1, 2), (2, 1), (1, 1, 1)):
        for models in product(subsets, repeat=len(splits)):
            yield Placement(tuple(Group(ParallelConfig(1, pp), m) for pp, m in zip(splits, models, strict=True)))


def is_valid(placement, case):
    try:
        validate(placement, case.cluster, case.models, case.profiles)
    except InvalidParameter:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_enumeration_finds_the_optimum_of_brute_force(seed):
    case = tiny_case(seed)
    evaluator = Evaluator(case)
    scores = [evaluator.score(p).num_served for p in every_placement(case) if is_valid(p, case)]
    found = plan(case, "exact")
    assert len(scores) > 200
    assert found.slo_attainment == max(scores) / case.workload.num_requests
    assert plan(case).slo_attainment == found.slo_attainment


@pytest.mark.parametrize("seed", range(3))
def test_annealing_finds_the_optimum_where_it_is_known(seed):
    case = tiny_case(seed, num_small=3, num_devices=4)
    search = Search(case)
    assert count_placements(search.facts) > 500  # more than auto would enumerate
    best = enumerate_all(search)
    assert plan(case, "anneal", seed=seed).slo_attainment == search.scored(best).served / case.workload.num_requests


def test_enumeration_refuses_what_it_cannot_finish():
    with pytest.raises(InvalidParameter, match="placements"):
        plan(make_case(num_small=8, num_large=4, num_devices=8), "exact")


@pytest.mark.parametrize("policy", NAMES)
def test_every_policy_gives_a_placement_that_the_cluster_holds(policy):
    case = tiny_case(num_small=4, num_large=1, num_devices=8) if policy != "exact" else tiny_case()
    case = replace(case, profiles={**case.profiles, **with_eight_stages(case)})
    found = plan(case, policy)
    validate(found.placement, case.cluster, case.models, case.profiles)
    assert 0 < found.slo_attainment <= 1
    assert found.planning_seconds > 0
    assert found.finished and found.policy == policy
    if policy not in WINDOWED:
        assert found.slo_attainment == found.history[-1].slo_attainment == found.result.slo_attainment


def with_eight_stages(case):
    eight, small = ParallelConfig(1, 8), case.profiles["small"]
    stages = replace(small.entries[TWO], latency=(0.0135,) * 8, weight_mem=(small.entries[ONE].weight_mem[0] / 8,) * 8)
    return {"small": replace(small, entries={**small.entries, eight: stages})}


@pytest.mark.parametrize("seed", range(3))
def test_auto_is_at_least_as_good_as_the_policies_of_the_paper(seed):
    case = make_case(num_small=4, num_large=2, num_devices=6, rate=8.0, seed=seed)
    ours = plan(case, seed=seed)
    for policy in ("sr-greedy", "mp-round-robin", "mp-search", "mp-search-sep"):
        assert ours.slo_attainment >= plan(case, policy).slo_attainment


def test_uneven_groups_beat_every_uniform_partition():
    """Seven devices, two large models beside six small ones: no equal groups suit both."""
    case = make_case(num_small=6, num_large=2, num_devices=7, rate=4.0, cv=4.0, slo_scale=2.0, duration=100.0)
    found = plan(case, effort=8_000_000)
    assert len({group.parallel for group in found.placement.groups}) > 1
    assert found.slo_attainment > plan(case, "mp-search-sep").slo_attainment


def test_auto_plans_models_that_fit_no_single_device():
    case = make_case(num_small=0, num_large=4, num_devices=8, duration=100.0)
    case = replace(case, cluster=replace(case.cluster, mem_budget=5 * GB))
    found = plan(case, "anneal", effort=500_000)
    assert found.slo_attainment >= plan(case, "mp-search").slo_attainment > 0


def test_however_little_the_effort_annealing_keeps_its_quick_starts():
    case = make_case(num_small=6, num_large=2, num_devices=8, rate=9.0, duration=100.0)
    assert plan(case, "anneal", effort=1).slo_attainment >= plan(case, "mp-search").slo_attainment


def test_without_deadlines_mean_latency_decides():
    case = make_case(num_small=2, num_large=0, num_devices=2, rate=3.0)
    models = tuple(replace(model, slo=1e9) for model in case.models)
    case = replace(case, models=models, cluster=replace(case.cluster, mem_budget=3 * GB))
    found, apart = plan(case), plan(case, "sr-uniform")
    assert found.slo_attainment == apart.slo_attainment == 1
    assert found.mean_latency_served < apart.mean_latency_served


def test_beam_is_at_least_as_good_as_its_fast_variant_here_and_wider_never_stops_at_less():
    search = Search(tiny_case(num_small=3, num_devices=4))
    skeleton = empty_groups([TWO, TWO])
    fast, narrow, wide = fast_greedy(search, skeleton), *(beam_greedy(search, skeleton, width) for width in (1, 4))
    assert search.scored(fast) <= search.scored(narrow) <= search.scored(wide)


def greedy_trap(device=""):
    """One device for the model with most requests, or for both of the others, who have more together."""
    sizes, counts = (2.0, 1.5, 1.5), (10, 8, 8)
    models = tuple(PlacedModel(f"m{m}", f"t{m}", slo=5.0) for m in range(3))
    split = ParallelConfig(1, 1, device)
    profiles = {f"t{m}": ModelProfile(f"t{m}", {split: Stages((0.1,), (sizes[m],))}) for m in range(3)}
    asked = np.repeat(np.arange(3), counts)
    cluster = Cluster.of_types([DeviceType(device, 1, 3.0)]) if device else Cluster(1, 3.0)
    return Case("trap", cluster, models, profiles, Workload(np.arange(26.0), asked))


@pytest.mark.parametrize("device", ["", "d"])
@pytest.mark.parametrize("policy", BEAMS)
def test_a_wider_beam_gets_out_of_a_trap_of_the_greedy_selection(policy, device):
    reached = [plan(greedy_trap(device), policy, beam_width=width).slo_attainment for width in (1, 2)]
    assert reached == [10 / 26, 16 / 26]


def test_a_held_out_half_is_planned_with_the_same_beam():
    case = greedy_trap()
    twice = np.concatenate([case.workload.times, case.workload.times + 26])
    case = case.with_workload(Workload(twice, np.tile(case.workload.models, 2)))
    assert [held_out(case, "mp-beam", beam_width=width).test for width in (1, 2)] == [10 / 26, 16 / 26]


@pytest.mark.parametrize(("policy", "width"), [("mp-beam", 0), ("auto", 2), ("clockwork++", 2)])
def test_a_beam_that_cannot_be_is_refused(policy, width):
    with pytest.raises(InvalidParameter) as caught:
        plan(tiny_case(), policy, beam_width=width)
    assert caught.value.field == "beam_width"


def test_the_first_replica_of_the_greedy_selection_is_the_best_of_all():
    search = Search(tiny_case(num_devices=1))
    alone = [search.scored((Group(ONE, (m,)),)) for m in range(3) if search.facts.is_useful(m, ONE)]
    best = beam_greedy(search, single_devices(search))
    assert search.scored(best) >= max(alone)


def test_equal_replicas_deal_models_out_evenly():
    case = make_case(num_small=4, num_large=0, num_devices=3)
    replicas = plan(case, "sr-uniform").placement.replicas(4)
    assert max(replicas) - min(replicas) <= 1


def test_clockwork_replans_each_window_on_its_own_arrivals():
    case = tiny_case(duration=100.0)
    windows = list(clockwork(Search(case), window=20.0))
    assert [window.start for window in windows] == [0, 20, 40, 60, 80]
    assert sum(window.num_requests for window in windows) == case.workload.num_requests
    for window in windows:
        part = case.with_workload(case.workload.between(window.start, window.end))
        search = Search(part)
        assert search.scored(replicate(search)).served == window.num_served


@pytest.mark.parametrize("policy", ["auto", "mp-beam"])
def test_a_window_for_a_policy_without_windows_is_refused(policy):
    with pytest.raises(
        InvalidParameter, match=r"has no windows; leave it out, or use clockwork\+\+ or replan"
    ) as caught:
        plan(tiny_case(), policy, window=5.0)
    assert caught.value.field == "window"


@pytest.mark.parametrize("policy", WINDOWED)
def test_every_request_is_in_one_window_and_no_window_is_empty(policy):
    tenths = np.concatenate([np.arange(60) / 10, 80 + np.arange(60) * 0.1])  # 14 * 0.1 is not 14 / 10
    case = tiny_case().with_workload(Workload(tenths, np.arange(120) % 2))
    windows = plan(case, policy, window=0.1).windows
    assert sum(window.num_requests for window in windows) == 120
    assert all(window.num_requests == len(case.workload.between(window.start, window.end).times) for window in windows)
    assert all(window.num_requests for window in windows)


@pytest.mark.parametrize("policy", WINDOWED)
@pytest.mark.filterwarnings("error")
def test_requests_that_all_come_at_once_are_in_one_window(policy):
    case = tiny_case().with_workload(Workload(np.zeros(9), np.zeros(9, np.int32)))
    assert [window.num_requests for window in plan(case, policy).windows] == [9]


def test_clockwork_with_one_window_is_selective_replication():
    case = tiny_case()
    assert plan(case, "clockwork++", window=1e6).slo_attainment == plan(case, "sr-greedy").slo_attainment


def test_policies_that_cannot_work_here_say_why():
    case = make_case(num_small=0, num_large=2, num_devices=4)
    too_small = replace(case, cluster=replace(case.cluster, mem_budget=5 * GB))
    with pytest.raises(InvalidParameter, match="single device"):
        plan(too_small, "sr-greedy")
    with pytest.raises(InvalidParameter, match="pipeline of 8"):
        plan(case, "mp-greedy-8")
    with pytest.raises(InvalidParameter, match="auto"):
        plan(case, "magic")
    assert set(POLICIES) < set(NAMES)
