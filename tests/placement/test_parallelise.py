"""The dynamic programme against brute force, and the profiles it makes."""

from itertools import combinations, product

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import ParallelConfig
from paceline.placement.parallelise import LayerCosts, profile_from_layers, split_layers


def random_costs(seed: int, num_layers: int) -> LayerCosts:
    rng = np.random.default_rng(seed)
    alone = rng.uniform(0.5, 2.0, num_layers)
    seconds = {1: alone, 2: 0.6 * alone + 0.05, 4: 0.35 * alone + 0.1}
    return LayerCosts(seconds, rng.uniform(1, 3, num_layers), rng.uniform(0, 0.3, num_layers))


def brute_force(costs: LayerCosts, num_stages: int, num_devices: int, degrees, mem_budget: float) -> float:
    """The smallest slowest stage over all cuts and all ways to hand out devices."""
    best = float("inf")
    for cuts in combinations(range(1, costs.num_layers), num_stages - 1):
        edges = list(zip((0, *cuts), (*cuts, costs.num_layers), strict=True))
        for tensor in product(degrees, repeat=num_stages):
            fits = all(costs.weight_mem[a:b].sum() / t <= mem_budget for (a, b), t in zip(edges, tensor, strict=True))
            if sum(tensor) == num_devices and fits:
                slowest = max(costs.stage_seconds(a, b, t) for (a, b), t in zip(edges, tensor, strict=True))
                best = min(best, slowest)
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("num_stages", "num_devices", "degrees"),
    [(1, 1, (1,)), (3, 3, (1,)), (3, 6, (2,)), (2, 5, (1, 4)), (3, 6, (1, 2, 4)), (4, 7, (1, 2, 4))],
)
@pytest.mark.parametrize("mem_budget", [float("inf"), 4.5])
def test_it_finds_what_brute_force_finds(seed, num_stages, num_devices, degrees, mem_budget):
    costs = random_costs(seed, num_layers=7)
    best = brute_force(costs, num_stages, num_devices, degrees, mem_budget)
    if best == float("inf"):
        with pytest.raises(InvalidParameter, match="hold no split"):
            split_layers(costs, num_stages, num_devices, degrees, mem_budget)
        return
    stages = split_layers(costs, num_stages, num_devices, degrees, mem_budget)
    assert max(costs.stage_seconds(s.first, s.end, s.tensor) for s in stages) == pytest.approx(best, rel=1e-12)
    assert [s.first for s in stages] == [0, *(s.end for s in stages[:-1])] and stages[-1].end == costs.num_layers
    assert sum(s.tensor for s in stages) == num_devices
    assert all(costs.weight_mem[s.first : s.end].sum() / s.tensor <= mem_budget for s in stages)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5, 8])
def test_equal_layers_are_spread_evenly(num_stages):
    costs = LayerCosts({1: np.ones(12)}, np.ones(12), np.zeros(12))
    stages = split_layers(costs, num_stages, num_stages)
    assert max(s.end - s.first for s in stages) == -(-12 // num_stages)


def test_uneven_layers_are_not_cut_by_count():
    costs = LayerCosts({1: np.array([6.0, 1, 1, 1, 1, 2])}, np.ones(6), np.zeros(6))
    assert [s.end for s in split_layers(costs, 2, 2)] == [1, 6]


def test_profiles_hold_every_split_that_fits():
    costs = random_costs(1, num_layers=6)
    profile = profile_from_layers("x", costs, max_devices=4, mem_budget=7.0, batches={4: random_costs(1, 6)})
    total = costs.weight_mem.sum()
    assert ParallelConfig(1, 1) not in profile.entries and total > 7
    for parallel, stages in profile.entries.items():
        assert parallel.num_devices <= 4 and max(stages.weight_mem) <= 7
        assert sum(stages.weight_mem) * parallel.tensor == pytest.approx(total)
        assert stages.batch_latency[4] == stages.latency  # the same costs were given for both sizes
    assert {(1, 3), (1, 4), (2, 2), (4, 1)} <= {(c.tensor, c.pipeline) for c in profile.entries}


def test_mixed_degrees_are_never_slower():
    costs = random_costs(3, num_layers=6)
    even = profile_from_layers("x", costs, max_devices=6)
    mixed = profile_from_layers("x", costs, max_devices=6, mixed=True)
    assert all(mixed.entries[c].bottleneck <= even.entries[c].bottleneck + 1e-12 for c in even.entries)
    assert any(mixed.entries[c].bottleneck < even.entries[c].bottleneck - 1e-3 for c in even.entries)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda costs: split_layers(costs, 8, 8), "8 stages for 5 layers"),
        (lambda costs: split_layers(costs, 1, 3, [3]), "tensor degree 3 has no costs"),
        (lambda costs: split_layers(costs, 2, 2, [1], mem_budget=1.0), "hold no split"),
        (lambda costs: profile_from_layers("x", costs, 2, mem_budget=1.0), "fits on no split over 2 devices"),
        (lambda costs: LayerCosts({1: np.ones(4)}, np.ones(5), np.zeros(5)), "5 layers cannot cost"),
        (lambda costs: LayerCosts({}, np.ones(5), np.zeros(5)), "no costs"),
    ],
)
def test_bad_input_is_refused(call, problem):
    with pytest.raises(InvalidParameter, match=problem):
        call(random_costs(0, num_layers=5))
