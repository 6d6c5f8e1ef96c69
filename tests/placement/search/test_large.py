"""Large clusters: batches, samples of long traces; never worse than round robin, in any time."""

from random import Random

import numpy as np
import pytest

from paceline.placement import (
    Evaluator,
    ParallelConfig,
    PlacedModel,
    Placement,
    Workload,
    simulate,
)
from paceline.placement.arrivals import draw_for_models, power_law_shares
from paceline.placement.case import Case
from paceline.placement.cluster import Cluster
from paceline.placement.placement import validate
from paceline.placement.search import plan
from paceline.placement.search.baselines import equal_replicas, round_robin
from paceline.placement.search.batched import batch_greedy
from paceline.placement.search.facts import Facts
from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.free_memory import Rooms
from paceline.placement.search.large import _torn_down
from paceline.placement.search.partitions import uniform_skeletons
from paceline.placement.search.sampling import Windows, windows_of
from paceline.placement.search.search import Search, TimeIsUp, empty_groups
from paceline.placement.workload import merge
from tests.placement.cases import GB, PROFILES, make_case


def large_case(num_models=60, num_devices=48, duration=20.0, load=1.0, seed=0):
    """Two types of unlike latency, and shares by a power law, dealt at random."""
    shares = np.random.default_rng(seed).permutation(power_law_shares(num_models, 0.7))
    models = []
    for i, share in enumerate(shares):
        kind = "small" if i % 3 else "large"
        rate = load * 2.5 * num_devices * float(share)
        models.append(PlacedModel(f"m{i}", kind, rate, 3.0, 4 * PROFILES[kind].fastest(1)))
    arrivals = draw_for_models(models, duration, seed)
    return Case("large", Cluster(num_devices, 12 * GB), tuple(models), PROFILES, arrivals)


def test_a_large_plan_beats_the_baselines_and_uses_every_device():
    case = large_case(load=1.6)
    found = plan(case, "large", effort=6_000_000)
    validate(found.placement, case.cluster, case.models, case.profiles)
    assert found.placement.num_devices == 48
    rivals = ("mp-round-robin", "sr-uniform", "sr-greedy", "mp-greedy-2", "mp-greedy-4")
    assert found.slo_attainment > max(plan(case, rival).slo_attainment for rival in rivals)
    assert found.finished and plan(case, "large", effort=6_000_000).placement == found.placement


def test_auto_plans_large_clusters_so(monkeypatch):
    monkeypatch.setattr("paceline.placement.search.policies.LARGE", 60 * 48)
    assert plan(large_case(), effort=100_000).history[0].found_by == "round robin"


@pytest.mark.parametrize("budget", [1e-9, 0.05, 0.5])
def test_whatever_the_time_no_plan_is_worse_than_round_robin(budget):
    case = large_case()
    floor = plan(case, "mp-round-robin").slo_attainment
    assert plan(case, "large", time_budget=budget).slo_attainment >= floor
    small = make_case(num_small=6, num_devices=8, rate=9.0)
    assert plan(small, time_budget=budget).slo_attainment >= plan(small, "mp-round-robin").slo_attainment


def test_batches_of_one_are_the_fast_greedy_selection():
    search = Search(make_case(num_small=5, num_devices=6, rate=6.0))
    skeleton = empty_groups([ParallelConfig(1, 1)] * 2 + [ParallelConfig(1, 2)] * 2)
    assert batch_greedy(search, skeleton, 1) == fast_greedy(search, skeleton)


def test_larger_batches_take_fewer_simulations_and_lose_little():
    case = large_case()
    (splits,) = [s for s in uniform_skeletons(Facts(Evaluator(case)), 48) if s[0] == ParallelConfig(1, 4)]
    spent, reached = [], []
    for batch in (1, 30):
        search = Search(case)
        batch_greedy(search, empty_groups(splits), batch)
        spent.append(search.spent)
        reached.append(search.best_score.served)
    assert spent[1] < spent[0] / 4 and reached[1] > 0.97 * reached[0]


def test_what_is_torn_down_stays_on_its_devices():
    search = Search(large_case())
    groups = batch_greedy(search, empty_groups([ParallelConfig(1, 4)] * 12), 20)
    for _ in range(20):
        rest = _torn_down(search, groups)
        assert sum(group.parallel.num_devices for group in rest) == 48
        assert sum(len(group.models) for group in rest) < sum(len(group.models) for group in groups)


def test_rooms_agree_with_the_facts_before_any_simulation():
    case = large_case(num_models=12, num_devices=8)
    facts = Facts(Evaluator(case))
    skeleton = empty_groups([ParallelConfig(1, 1)] * 4 + [ParallelConfig(1, 2)] * 2)
    groups = fast_greedy(Search(case), skeleton)
    some = tuple(group.without_model(group.models[0]) if group.models else group for group in groups)
    rooms = Rooms(facts, some)
    for model in range(12):
        may = rooms.may_hold(model)
        for g, group in enumerate(some):
            assert may[g] or not facts.has_room(group, model)


def test_the_next_group_with_room_is_the_first_from_there_on():
    case = large_case(num_models=12, num_devices=60)
    rooms, random = Rooms(Facts(Evaluator(case)), empty_groups([ParallelConfig(1, 1)] * 60)), Random(1)
    found = []
    for _ in range(300):
        model, start = random.randrange(12), random.randrange(60)
        found.append(rooms.next(model, start))
        assert found[-1] == rooms.first(model, np.roll(np.arange(60), -start))
        if found[-1] is not None:
            rooms.add(found[-1], model)
    assert None in found and len(set(found)) > 50


def test_dealing_to_many_groups_looks_at_few_of_them_each_time(monkeypatch):
    looks, may_hold = [], Rooms.may_hold

    def counted(rooms, model, part):
        found = may_hold(rooms, model, part)
        looks.append(len(found))
        return found

    monkeypatch.setattr(Rooms, "may_hold", counted)
    groups = equal_replicas(Search(make_case(num_small=2, num_large=0, num_devices=4000)))
    assert len(groups) == 4000 and all(len(group.models) == 2 for group in groups)
    assert sum(looks) < 50 * len(groups)


def test_dealing_without_a_simulation_ends_when_nothing_fits():
    search = Search(large_case(num_models=20, num_devices=16))
    groups = round_robin(search)
    assert max(Placement(groups).replicas(20)) - min(Placement(groups).replicas(20)) <= 2
    assert search.best == groups


def test_a_quick_policy_ends_though_time_is_up():
    search = Search(make_case(), time_budget=1e-9)
    with pytest.raises(TimeIsUp):
        round_robin(search)
    search.without_limit(round_robin)
    assert search.best


def test_windows_of_a_long_trace_say_how_far_off_they_are():
    case = make_case(num_small=3, num_large=1, duration=2000.0)
    short = windows_of(case, 3000)
    assert isinstance(short, Windows)
    count = short.case.workload.num_requests
    assert 2000 < count < 4500 and short.edges[-1] == count
    placement = plan(case.with_workload(case.workload.between(0, 200)), "mp-search").placement
    sample = short.sample(placement)
    whole = simulate(placement, case).slo_attainment
    assert sample.num_requests == count and 0 < sample.standard_error < 0.1
    assert abs(sample.slo_attainment - whole) < 5 * sample.standard_error + 0.02
    assert windows_of(case, case.workload.num_requests) is None


def test_a_plan_searched_on_windows_is_judged_on_the_whole_trace(monkeypatch):
    monkeypatch.setattr("paceline.placement.search.planner.most_requests", lambda budget: 1000)
    case = make_case(duration=600.0)
    found = plan(case, "mp-search")
    assert found.sample is not None and found.sample.num_requests < 2500
    assert found.result.num_requests == case.workload.num_requests
    assert found.slo_attainment == simulate(found.placement, case).slo_attainment


def test_streams_are_merged_stretch_by_stretch_as_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    streams = [np.sort(rng.integers(0, 500, size).astype(float)) for size in (300, 0, 700, 50)]
    at_once = merge(streams)
    monkeypatch.setattr("paceline.placement.workload.PART", 64)
    by_part = merge(streams)
    assert np.array_equal(at_once.times, by_part.times) and np.array_equal(at_once.models, by_part.models)
    assert np.array_equal(by_part.counts(4), [300, 0, 700, 50])


def test_checks_look_across_the_parts_of_a_long_trace(monkeypatch):
    monkeypatch.setattr("paceline.placement.workload.PART", 4)
    times = np.arange(12.0)
    times[8] = 6.5
    with pytest.raises(Exception, match=r"request 8 at 6\.5 s comes after one at 7"):
        Workload(times, np.zeros(12, np.int32))


def test_a_simulation_of_many_requests_says_what_a_small_one_says(monkeypatch):
    case = make_case(duration=300.0)
    placement = plan(case, "mp-search").placement
    usual = simulate(placement, case)
    monkeypatch.setattr("paceline.placement.simulator.evaluator.MANY_REQUESTS", 1)
    lean = simulate(placement, case)
    assert lean.slo_attainment == usual.slo_attainment and lean.num_rejected == usual.num_rejected
    assert lean.p99_latency_served == usual.p99_latency_served
    assert lean.mean_latency_served == pytest.approx(usual.mean_latency_served)
