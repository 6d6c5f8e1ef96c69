"""Devices of several types: what a case says of them, and plans that use each for what it does best."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import Placement, simulate
from paceline.placement.case_file import case_from
from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.search import plan
from paceline.placement.search.fewest import cheapest_types, described
from paceline.placement.simulator import Evaluator

FAST, SLOW = (
    {"type": "fast", "count": 1, "mem_budget": 10.0, "price": 4.0},
    {"type": "slow", "count": 2, "mem_budget": 6.0},
)


def entry(device, seconds, size, pipeline=1):
    even = {"latency": [seconds / pipeline] * pipeline, "weight_mem": [size / pipeline] * pipeline}
    return {"op": 1, "pp": pipeline, "device": device} | even


VALUES = {
    "devices": [FAST, SLOW],
    "models": [
        {"name": "a", "type": "small", "rate": 6, "cv": 2, "slo": 0.6},
        {"name": "b", "type": "small", "rate": 2, "cv": 2, "slo": 1.2},
        {"name": "c", "type": "large", "rate": 1, "cv": 2, "slo": 1.5},
    ],
    "profiles": {
        "small": [entry("fast", 0.1, 4.0), entry("slow", 0.3, 4.0)],
        "large": [entry("fast", 0.3, 9.0), entry("slow", 1.0, 11.0, pipeline=2)],
    },
    "duration": 60,
    "seed": 3,
}


def case(**changes):
    return case_from(VALUES | changes, Path(), "types")


def every_placement(one):
    """All selections for the fast device and for the slow ones, alone or as a pipeline of both."""

    def selections(split):
        for chosen in product((False, True), repeat=3):
            held = tuple(m for m in range(3) if chosen[m])
            if all(split in one.profile_of(m).entries for m in held):
                yield Group(split, held)

    fast, slow, both = ParallelConfig(1, 1, "fast"), ParallelConfig(1, 1, "slow"), ParallelConfig(1, 2, "slow")
    for first in selections(fast):
        for second, third in product(selections(slow), repeat=2):
            yield Placement((first, second, third))
        for second in selections(both):
            yield Placement((first, second))


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_as_good_as_the_best_there_is(seed):
    one, evaluator, best = case(seed=seed), Evaluator(case(seed=seed)), 0.0
    for placement in every_placement(one):
        try:
            best = max(best, evaluator.simulate(placement).slo_attainment)
        except InvalidParameter:  # does not fit
            continue
    made = plan(one)
    assert made.slo_attainment == simulate(made.placement, one).slo_attainment >= best
    assert plan(one, "exact").slo_attainment == made.slo_attainment
    assert plan(one, "anneal").slo_attainment >= 0.99 * best


@pytest.mark.parametrize("policy", ["auto", "exact", "anneal"])
def test_the_first_type_leaves_to_the_others_what_they_serve_better(policy):
    """Planned first, the fast device serves the large model too, whose requests the small one's then wait for."""
    devices = [FAST, SLOW | {"mem_budget": 5.0}]
    models = [
        {"name": "a", "type": "large", "rate": 3, "slo": 2.4},
        {"name": "b", "type": "small", "rate": 3, "cv": 3, "slo": 0.4},
    ]
    profiles = {
        "small": [entry("fast", 0.1, 2.4), entry("slow", 0.17, 2.4)],
        "large": [entry("fast", 0.5, 5.4), entry("slow", 0.54, 5.4, pipeline=2)],
    }
    one = case(devices=devices, models=models, profiles=profiles, duration=40, seed=1)
    apart = simulate(Placement.from_lists([[1, 1, [1], "fast"], [1, 2, [0], "slow"]]), one).slo_attainment
    assert plan(one, policy).slo_attainment >= apart > 1.1 * plan(one, "mp-search").slo_attainment


def test_a_case_of_many_types_ends_with_its_time_and_keeps_what_it_found():
    devices = [FAST | {"count": 6}, SLOW | {"count": 9}]
    models = [model | {"name": f"{model['name']}{i}"} for model in VALUES["models"] for i in range(5)]
    shares = []
    many = case(devices=devices, models=models)
    made = plan(many, effort=10**12, time_budget=0.4, progress=lambda share, best: shares.append(share))
    assert not made.finished and 0.4 <= made.planning_seconds < 5
    assert made.slo_attainment == made.history[-1].slo_attainment > 0
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_an_interrupt_on_the_first_type_keeps_what_was_found_there():
    asked = []

    def clock():
        asked.append(len(asked))
        if len(asked) == 6:  # the start, and five better placements
            raise KeyboardInterrupt
        return float(len(asked))

    stopped = plan(case(), "mp-search", clock=clock)
    assert not stopped.finished and stopped.slo_attainment > 0
    assert len({group.parallel.device for group in stopped.placement.groups}) == 1


def test_a_policy_that_is_none_for_any_type_is_refused():
    with pytest.raises(InvalidParameter, match="pipeline of 8"):
        plan(case(), "mp-greedy-8")


def test_each_type_holds_what_it_was_profiled_for_and_has_room_for():
    made = plan(case())
    devices = {group.parallel.device for group in made.placement.groups}
    assert devices == {"fast", "slow"}
    assert Placement.from_lists(made.placement.to_lists()) == made.placement
    alone = plan(case(devices=[FAST], profiles={name: rows[:1] for name, rows in VALUES["profiles"].items()}))
    assert made.slo_attainment > alone.slo_attainment


def test_a_placement_is_checked_type_by_type():
    for wrong, problem in (
        ([[1, 1, [0], "fast"], [1, 1, [1], "fast"]], "need 2 devices of type 'fast', the cluster has 1"),
        ([[1, 1, [0, 1], "slow"]], "needs 8 bytes on a device, the budget is 6"),
        ([[1, 1, [0]]], "there is no type ''"),
        ([[1, 1, [0], "new"]], "there is no type 'new'"),
    ):
        with pytest.raises(InvalidParameter, match=problem):
            simulate(Placement.from_lists(wrong), case())


def test_models_that_no_type_can_serve_are_refused_or_left_out():
    models = [*VALUES["models"][:2], VALUES["models"][2] | {"slo": 0.2}]
    with pytest.raises(InvalidParameter, match="slo"):
        plan(case(models=models))
    assert set(plan(case(models=models), allow_unplaceable=True).unplaceable) == {2}


def test_what_one_type_leaves_may_be_only_for_models_that_the_next_cannot_hold():
    models = [VALUES["models"][1] | {"slo": 50}, VALUES["models"][2] | {"rate": 30}]
    profiles = VALUES["profiles"] | {"large": [entry("fast", 0.3, 5.0), entry("slow", 1.0, 11.0)]}
    made = plan(case(devices=[FAST | {"count": 4}, SLOW], models=models, profiles=profiles), "anneal")
    assert made.slo_attainment > 0 and not made.unplaceable


def test_a_type_on_which_nothing_is_profiled_stays_idle():
    profiles = {name: rows[:1] for name, rows in VALUES["profiles"].items()}
    made = plan(case(profiles=profiles))
    assert {group.parallel.device for group in made.placement.groups} == {"fast"}
    assert made.slo_attainment == plan(case(devices=[FAST], profiles=profiles)).slo_attainment


def test_language_models_are_planned_too():
    def tokens(device, scale):
        seconds = {"seconds": {"0": {"1": 0.01 * scale, "64": 0.05 * scale}}, "seats": 16}
        return {"op": 1, "pp": 1, "device": device, "weight_mem": [4.0], "kv_bytes": 0.001, "tokens": seconds}

    models = [
        {
            "name": "chat",
            "type": "lm",
            "rate": 6,
            "slo_first": 1.0,
            "slo": 4.0,
            "prompt_tokens": 30,
            "output_tokens": 60,
        }
    ]
    made = plan(case(models=models, profiles={"lm": [tokens("fast", 1.0), tokens("slow", 3.0)]}, duration=10))
    assert made.placement.num_devices >= 1 and made.slo_attainment > 0.9
    assert not np.isnan(made.result.model_attainment).any()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"devices": []}, "devices"),
        ({"devices": [FAST, FAST]}, "devices"),
        ({"devices": [FAST | {"sort": 1}]}, "devices[0]"),
        ({"devices": [FAST | {"count": 0}]}, "num_devices"),
        ({"devices": [FAST | {"price": -1}]}, "price"),
        ({"devices": [FAST]}, "device"),
        ({"devices": None, "num_devices": 2, "mem_budget": 9.0}, "device"),
        ({"num_devices": 2}, "num_devices"),
        ({"mem_budget": 9.0}, "mem_budget"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes, field):
    values = {key: value for key, value in (VALUES | changes).items() if value is not None}
    with pytest.raises(InvalidParameter) as caught:
        case_from(values, Path(), "types")
    assert caught.value.field == field


def test_memory_is_scaled_on_every_type():
    scaled = case().cluster.scale_memory(0.5)
    assert [device.mem_budget for device in scaled.types] == [5.0, 3.0] and scaled.mem_budget == 5.0
    with pytest.raises(InvalidParameter, match="its types have 3"):
        case().with_devices(2)


def test_the_cheapest_devices_that_suffice_are_found():
    devices = [FAST | {"count": 4, "price": 4.0}, SLOW | {"count": 4, "price": 1.0}]
    asked = []

    def planned(smaller):
        power = sum({"fast": 3.0, "slow": 1.0}[d.name] * d.num_devices for d in smaller.cluster.types)
        asked.append(described(smaller.cluster))
        return min(1.0, power / 10), described(smaller.cluster)

    found = cheapest_types(case(devices=devices), 0.55, planned)  # 5.5: a fast one and three slow ones
    assert (found.found, found.num_devices) == ("1 fast, 3 slow", 4)
    assert len(asked) == len(set(asked)) == len(found.tried) < 25
    with pytest.raises(InvalidParameter, match="reach"):
        cheapest_types(case(devices=devices), 0.99, lambda smaller: (0.5, None))
    assert cheapest_types(case(devices=devices), 1.0, lambda smaller: (1.0, smaller)).num_devices == 1


@pytest.mark.parametrize("policy", ["clockwork++", "replan"])
def test_policies_with_windows_know_one_type(policy):
    with pytest.raises(InvalidParameter, match="one type"):
        plan(case(), policy)
