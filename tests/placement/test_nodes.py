"""Devices that come in nodes: ranks that share a layer are in one of them."""

import pytest

from paceline.errors import InvalidParameter
from paceline.placement import (
    Case,
    Cluster,
    ModelProfile,
    ParallelConfig,
    PlacedModel,
    Placement,
    Stages,
    Workload,
    simulate,
)
from paceline.placement.search import plan

TIMES = [0.1 * number for number in range(40)]


def case(num_devices, node_devices, degrees=(1, 2, 3, 4, 8)):
    """One model that is the faster the more devices share its layers, and fits no single device."""
    entries = {ParallelConfig(tensor=n): Stages((0.8 / n,), (8.0 / n,)) for n in degrees}
    models = (PlacedModel("a", "p", slo=1.0),)
    cluster = Cluster(num_devices, 4.0, node_devices)
    return Case("nodes", cluster, models, {"p": ModelProfile("p", entries)}, Workload(TIMES, [0] * len(TIMES)))


@pytest.mark.parametrize(
    ("num_devices", "node_devices", "degrees", "fit"),
    [
        (8, None, [8], True), (8, 4, [8], False), (8, 4, [4, 4], True), (8, 4, [3, 3, 2], False),
        (8, 4, [3, 1, 3, 1], True),
        (12, 8, [8, 4], True), (12, 8, [4, 8], True), (12, 8, [6, 6], False), (10, 4, [2] * 5, True),
        (10, 4, [4, 4, 4], False),
    ],
)  # fmt: skip
def test_stages_fit_nodes_as_a_whole(num_devices, node_devices, degrees, fit):
    assert Cluster(num_devices, 1.0, node_devices).has_nodes_for(degrees) == fit


@pytest.mark.parametrize(("node_devices", "most"), [(None, 8), (8, 8), (4, 4), (2, 2), (6, 3)])
def test_plans_keep_a_layers_ranks_in_a_node(node_devices, most):
    found = plan(case(8, node_devices)).placement
    assert max(group.parallel.tensor for group in found.groups) <= most
    degrees = [g.parallel.tensor for g in found.groups for _ in range(g.parallel.pipeline)]
    assert Cluster(8, 1.0, node_devices).has_nodes_for(degrees)


def test_a_plan_across_nodes_is_refused():
    with pytest.raises(InvalidParameter, match="do not fit nodes of 4"):
        simulate(Placement.from_lists([[8, 1, [0]]]), case(8, 4))


def test_a_model_whose_splits_fit_no_node_is_named():
    with pytest.raises(InvalidParameter, match="num_devices_per_node: 4 for model 'a'"):
        plan(case(8, 4, degrees=(8,)))


def test_a_node_has_devices():
    with pytest.raises(InvalidParameter, match="num_devices_per_node"):
        Cluster(8, 1.0, 0)
