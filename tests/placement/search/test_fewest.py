"""The smallest cluster that reaches an attainment: right for a known curve, and for a case that is planned."""

from dataclasses import replace

import pytest

from paceline.errors import InvalidParameter
from paceline.placement.search import plan
from paceline.placement.search.fewest import fewest_devices
from tests.placement.cases import make_case


@pytest.fixture
def case():
    return make_case()


@pytest.mark.parametrize("needed", [1, 2, 5, 63, 64])
def test_the_first_that_suffices_is_found_in_a_few_plans(needed, case):
    large = replace(case, cluster=replace(case.cluster, num_devices=64))

    def planned(smaller):
        devices = smaller.cluster.num_devices
        if devices == 3:
            raise InvalidParameter("profiles", "too large", "more devices")
        return (0.995 if devices >= needed else 0.5), devices

    found = fewest_devices(large, 0.99, planned)
    assert found.num_devices == found.found == (needed if needed != 3 else 4)
    assert len(found.tried) <= 7 and found.tried[64] == 0.995


def test_what_no_cluster_reaches_is_refused(case):
    with pytest.raises(InvalidParameter, match=r"reach 50\.00%, not 99\.00%"):
        fewest_devices(case, 0.99, lambda smaller: (0.5, None))
    with pytest.raises(InvalidParameter, match="reach"):
        fewest_devices(case, 1.5, lambda smaller: (1.0, None))


def test_a_planned_case_needs_no_more_than_it_has(case):
    def planned(smaller):
        made = plan(smaller, "sr-greedy")
        return made.slo_attainment, made

    wanted = plan(case, "sr-greedy").slo_attainment
    found = fewest_devices(case, wanted, planned)
    assert found.num_devices <= case.cluster.num_devices
    assert found.found.slo_attainment >= wanted
    assert found.num_devices == 1 or found.tried.get(found.num_devices - 1, 0.0) < wanted
