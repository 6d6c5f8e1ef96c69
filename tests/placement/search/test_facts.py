"""What is known before any search: what fits where, which deadlines can be met, and bounds that never lie."""

from dataclasses import replace
from random import Random

import pytest

from paceline.errors import InvalidParameter
from paceline.placement import Cluster, Evaluator, Group, ParallelConfig, Placement, Stages, validate
from paceline.placement.search.bounds import Bounds, may_hold
from paceline.placement.search.facts import Facts
from paceline.placement.search.moves import MOVES, neighbours, propose
from paceline.placement.search.partitions import multisets
from paceline.placement.search.search import empty_groups
from tests.placement.cases import GB, make_case

ONE, TWO, FOUR = (ParallelConfig(1, pp) for pp in (1, 2, 4))


def facts_of(case):
    return Facts(Evaluator(case))


def test_memory_is_counted_per_device():
    facts = facts_of(make_case(num_small=5, num_large=1))
    assert facts.fits(ONE, (0, 1, 2, 3))  # 4 x 2 GB of 9
    assert not facts.fits(ONE, (0, 1, 2, 3, 4))
    assert not facts.fits(ONE, (0, 5))  # 2 + 8 GB
    assert facts.fits(TWO, (0, 1, 2, 3, 5))


def test_the_fullest_stage_counts_where_stages_are_uneven():
    case = make_case(num_small=2, num_large=0)
    uneven = replace(case.profiles["small"], entries={TWO: Stages((0.05, 0.05), (6 * GB, 1 * GB))})
    facts = facts_of(replace(case, profiles={**case.profiles, "small": uneven}))
    assert facts.fits(TWO, (0,))
    assert not facts.fits(TWO, (0, 1))  # 12 GB on the first device, 2 on the second


def test_splits_too_slow_for_a_deadline_are_of_no_use():
    case = make_case(
        num_small=1, num_large=0, slo_scale=1.2
    )  # 0.12 s; one device 0.1119 s, two 0.1179 s, four 0.1198 s
    slow = make_case(num_small=1, num_large=0, slo_scale=1.15)
    assert facts_of(case).splits == [ONE, TWO, FOUR]
    assert facts_of(slow).splits == [ONE]


@pytest.mark.parametrize(
    ("changed", "field", "number"),
    [
        ({"slo_scale": 1.0}, "slo", "0.1119"),
        ({"cluster": Cluster(4, 1e8)}, "mem_budget", "100000000"),
    ],
)
def test_models_that_no_group_can_serve_are_refused_with_the_number(changed, field, number):
    cluster = changed.pop("cluster", None)
    case = make_case(num_large=0, **changed)
    case = replace(case, cluster=cluster) if cluster else case
    with pytest.raises(InvalidParameter, match=number) as refused:
        facts_of(case)
    assert refused.value.field == field


def test_a_model_that_needs_more_devices_than_there_are_is_told_apart():
    case = make_case(num_small=1, num_large=1, num_devices=1)
    large = replace(case.profiles["large"], entries={TWO: case.profiles["large"].entries[TWO]})
    facts = facts_of(replace(case, profiles={**case.profiles, "large": large}))
    assert list(facts.unplaceable) == [1]
    assert facts.unplaceable[1].field == "num_devices"


@pytest.mark.parametrize("seed", range(4))
def test_bounds_are_never_below_what_is_served(seed):
    case = make_case(num_small=3, num_large=1, rate=12.0, slo_scale=1.5 + seed, seed=seed)
    evaluator = Evaluator(case)
    facts = Facts(evaluator)
    bounds, random = Bounds(facts), Random(seed)
    tight = 0
    for splits in multisets(facts.splits, 4):
        groups = tuple(
            replace(group, models=random.choice(may_hold(facts, group.parallel))) for group in empty_groups(splits)
        )
        bound = bounds.served(splits)
        assert evaluator.score(Placement(groups)).num_served <= bound
        tight += bound < case.workload.num_requests
    assert tight  # the bound says something


def test_neighbours_are_all_placements_one_replica_away():
    case = make_case(num_small=3, num_large=0, num_devices=2)
    groups = (Group(ONE, (0,)), Group(ONE, (1, 2)))
    found = {tuple(group.models for group in near) for near in neighbours(facts_of(case), groups)}
    first = {((0, 1), (1, 2)), ((0, 2), (1, 2)), ((1,), (1, 2)), ((2,), (1, 2)), ((), (1, 2))}
    second = {((0,), (0, 1, 2)), ((0,), (0, 2)), ((0,), (0, 1)), ((0,), (2,)), ((0,), (1,))}
    assert found == first | second


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_every_move_leads_to_a_placement_that_fits(move):
    case = make_case(num_small=4, num_large=2, num_devices=6)
    facts, random = facts_of(case), Random(0)
    groups, changed = empty_groups([TWO, ONE, ONE, TWO]), 0
    for _ in range(300):
        moved = move(facts, random, groups)
        mixed = propose(facts, random, groups)  # so that the move meets many placements
        for found in (moved, mixed):
            if found is not None:
                validate(Placement(found), case.cluster, case.models, case.profiles)
        changed += moved is not None
        groups = mixed or groups
    assert changed > 10


@pytest.mark.filterwarnings("error")
def test_bounds_know_stages_of_no_time():
    case = make_case(num_small=2, num_large=0, num_devices=2)
    entries = {ONE: Stages((1e-300,), (2 * GB,))}
    case = replace(case, profiles={**case.profiles, "small": replace(case.profiles["small"], entries=entries)})
    assert Bounds(facts_of(case)).served((ONE, ONE)) == case.workload.num_requests
