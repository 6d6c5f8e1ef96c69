"""Models that weigh more than others, and models that must reach an attainment: what plans make of it."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import Group, ParallelConfig, Placement, simulate
from paceline.placement.case_file import case_from
from paceline.placement.search import plan
from paceline.placement.search.goal import Goal

RATES = {"often": 6.0, "rare": 1.0, "third": 3.0}


def case(num_devices=1, memory=1.0, **changes):
    """Models of one unit of memory each, and a device has room for `memory` of them."""
    models = [{"name": name, "type": "p", "rate": rate, "cv": 3.0, "slo": 0.5} for name, rate in RATES.items()]
    models = [model | changes.get(model["name"], {}) for model in models]
    entries = [
        {"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [1.0]},
        {"op": 1, "pp": 2, "latency": [0.055, 0.055], "weight_mem": [0.5, 0.5]},
    ]
    values = {"num_devices": num_devices, "mem_budget": memory, "models": models, "profiles": {"p": entries}}
    return case_from(values | {"duration": 60, "seed": 1}, Path(), "goal")


def held(made):
    return [group.models for group in made.placement.groups]


@pytest.mark.parametrize("policy", ["auto", "anneal", "exact", "large", "sr-greedy", "mp-search"])
def test_a_device_with_room_for_one_model_holds_the_one_that_is_worth_most(policy):
    assert held(plan(case(), policy, effort=200_000)) == [(0,)]
    assert held(plan(case(rare={"weight": 30.0}), policy, effort=200_000)) == [(1,)]
    assert held(plan(case(third={"floor": 0.9}), policy, effort=200_000)) == [(2,)]
    assert held(plan(case(third={"floor": 0.9}, rare={"weight": 1000.0}), policy, effort=200_000)) == [(2,)]


def best_by_hand(goal, made_for):
    """The most that any placement on two devices is worth."""
    sets = [models for bits in product([0, 1], repeat=3) if (models := tuple(i for i in range(3) if bits[i]))]
    singles = [Group(ParallelConfig(1, 1), models) for models in sets if len(models) <= 2]
    pairs = [Group(ParallelConfig(1, 2), models) for models in sets]
    placements = [Placement((a, b)) for a in singles for b in singles] + [Placement((pair,)) for pair in pairs]
    counts = made_for.workload.counts(3)
    shares = [np.array(simulate(placement, made_for).model_attainment) for placement in placements]
    return max(goal.worth(np.rint(share * counts)) for share in shares)


@pytest.mark.parametrize(
    "changes",
    [{"rare": {"weight": 8.0}}, {"rare": {"floor": 0.95}}, {"often": {"floor": 0.5}, "third": {"weight": 3.0}},
     {name: {"floor": 1.0} for name in RATES}],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["auto", "exact"])
def test_enumeration_finds_what_is_worth_most(changes, policy):
    one = case(2, 2.0, **changes)
    counts = one.workload.counts(3)
    goal = Goal.of(one, counts)
    assert goal is not None
    found = plan(one, policy)
    served = np.rint(np.array(found.result.model_attainment) * counts)
    assert goal.worth(served) == pytest.approx(best_by_hand(goal, one))


def test_floors_go_before_weights_and_weights_before_numbers():
    one = case(often={"weight": 2.0}, rare={"floor": 0.5})
    goal = Goal.of(one, np.array([100, 10, 50]))
    assert goal is not None
    assert goal.worth(np.array([0, 5, 0])) > goal.worth(np.array([100, 4, 50]))
    assert goal.worth(np.array([51, 5, 0])) > goal.worth(np.array([0, 5, 100]))
    assert goal.worth(np.array([0, 6, 0])) - goal.worth(np.array([0, 5, 0])) == 1.0
    assert goal.most == goal.worth(np.array([100, 10, 50]))
    assert np.argmax(goal.urgency(np.zeros(3), np.array([100, 10, 50]))) == 1


def test_without_wishes_nothing_is_weighed():
    assert Goal.of(case(), np.array([1, 1, 1])) is None


@pytest.mark.parametrize(
    ("changes", "field"), [({"weight": 0.0}, "weight"), ({"weight": 1e9}, "weight"), ({"floor": 1.5}, "floor")]
)
def test_what_is_no_wish_is_named(changes, field):
    with pytest.raises(InvalidParameter) as refusal:
        case(often=changes)
    assert refusal.value.field == field


def test_windows_know_no_wishes():
    with pytest.raises(InvalidParameter, match=r"clockwork\+\+ knows no weights"):
        plan(case(often={"weight": 2.0}), "clockwork++")
    assert replace(case().models[0], weight=2.0).weight == 2.0
