"""Buckets, pools and groups: what is enumerated around the greedy selection."""

from itertools import product

import pytest

from paceline.placement import Evaluator, ParallelConfig
from paceline.placement.search.facts import Facts
from paceline.placement.search.partitions import (
    bucket_partitions,
    buckets,
    device_shares,
    multisets,
    remainder,
    uniform_skeletons,
)
from tests.placement.cases import make_case


def facts_of(**options):
    return Facts(Evaluator(make_case(**options)))


def sizes(splits):
    return [split.num_devices for split in splits]


def test_models_of_unlike_latency_go_into_different_buckets():
    assert buckets(facts_of(num_small=3, num_large=2)) == [(0, 1, 2), (3, 4)]
    assert buckets(facts_of(num_small=3, num_large=2), gap=9.0) == [(0, 1, 2, 3, 4)]


def test_neighbouring_buckets_are_joined_in_every_way():
    found = list(bucket_partitions([(0,), (1,), (2,)]))
    assert found == [[(0, 1, 2)], [(0,), (1, 2)], [(0, 1), (2,)], [(0,), (1,), (2,)]]


def test_shares_use_all_devices_and_stay_near_the_share_of_work():
    facts = facts_of(num_small=3, num_large=1, num_devices=8)
    shares = device_shares(facts, [(0, 1, 2), (3,)])
    assert shares and all(sum(share) == 8 and min(share) > 0 for share in shares)
    assert device_shares(facts, [(0, 1, 2, 3)]) == [(8,)]


def test_uniform_groups_leave_the_rest_to_smaller_pipelines():
    facts = facts_of(num_devices=7)
    assert [sizes(splits) for splits in uniform_skeletons(facts, 7)] == [[1] * 7, [2, 2, 2, 1], [4, 2, 1]]
    assert sizes(remainder(facts, 3)) == [2, 1]


@pytest.mark.parametrize(("degrees", "devices"), [((1, 2, 4), 7), ((2, 4), 7), ((3, 4), 11), ((1,), 3)])
def test_multisets_are_those_that_leave_no_room(degrees, devices):
    splits = [ParallelConfig(1, degree) for degree in degrees]
    counts = product(*(range(devices // degree + 1) for degree in degrees))
    used = [(count, devices - sum(d * c for d, c in zip(degrees, count, strict=True))) for count in counts]
    expected = {count for count, left in used if 0 <= left < min(degrees)}
    found = [tuple(chosen.count(split) for split in splits) for chosen in multisets(splits, devices)]
    assert len(found) == len(set(found))
    assert set(found) == expected


@pytest.mark.parametrize("num_devices", [71, 100])
def test_no_device_is_left_out_where_shares_are_coarse(num_devices):
    facts = facts_of(num_small=3, num_large=1, num_devices=num_devices)
    assert {sum(share) for share in device_shares(facts, [(0, 1, 2), (3,)])} == {num_devices}


def test_multisets_of_a_thousand_devices_need_no_recursion():
    first = next(multisets([ParallelConfig(1, 1), ParallelConfig(1, 2)], 5000))
    assert first == (ParallelConfig(1, 1),) * 5000
