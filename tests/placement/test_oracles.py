"""The simulator against queueing theory: within 1 % at 300,000 arrivals, for seeds that stay fixed."""

import numpy as np
import pytest

from paceline.placement import (
    Case,
    Cluster,
    ControllerRules,
    Evaluator,
    ModelProfile,
    ParallelConfig,
    PlacedModel,
    Placement,
    Stages,
    Workload,
)
from paceline.placement.arrivals import assign_models, gamma_times, poisson_times
from paceline.placement.simulator.evaluator import NO_LIMIT
from paceline.placement.simulator.kernel import run
from paceline.placement.workload import merge
from paceline.theory.queueing import md1_wait, mixture_wait, mm1_wait, pipeline_latency, simple_latency

ARRIVALS = 300_000
NO_OVERHEADS = ControllerRules(overhead=0.0, stage_overhead=0.0)


def poisson(rate: float, shares=(1.0,), seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    return assign_models(poisson_times(rate, ARRIVALS / rate, rng), np.array(shares), rng)


def mean_latency(
    seconds: list[float], groups: list, workload: Workload, stages: tuple[float, ...] = (0.5, 0.5)
) -> float:
    """Of models that take `seconds` each, alone or cut into `stages` (shares of the work)."""
    profiles = {
        f"type {i}": ModelProfile(
            f"type {i}",
            {
                ParallelConfig(1, 1): Stages((time,), (1.0,)),
                ParallelConfig(1, 2): Stages(tuple(time * share for share in stages), (0.5, 0.5)),
            },
        )
        for i, time in enumerate(seconds)
    }
    models = tuple(PlacedModel(f"m{i}", f"type {i}") for i in range(len(seconds)))
    case = Case("queue", Cluster(2, 10.0), models, profiles, workload)
    score = Evaluator(case, rules=NO_OVERHEADS).score(Placement.from_lists(groups))
    assert score.num_served == workload.num_requests
    return score.mean_latency_served


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_constant_service(load):
    measured = mean_latency([1.0], [[1, 1, [0]]], poisson(load))
    assert measured == pytest.approx(1 + md1_wait(load, 1.0), rel=0.01)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
def test_exponential_service(load):
    """Every request is a model of its own, with a latency of its own."""
    times = poisson(load, seed=2).times
    n = len(times)
    seconds = np.random.default_rng(1).exponential(1.0, (n, 1)).astype(np.float32)
    each, nobody = np.arange(n + 1, dtype=np.int32), np.zeros(n, np.int32)
    counts, unlimited = np.zeros((2, n), np.int64), np.full(n, np.inf, np.float32)
    stages = np.ones(1, np.int32)
    keep = np.empty(0), np.empty(0, np.int32)
    total = run(times, each[:n], unlimited, each, nobody, seconds, stages, 0.0, NO_LIMIT, counts[0], counts[1], *keep)
    assert counts[0].sum() == n
    assert total / n == pytest.approx(1 + mm1_wait(load, 1.0), rel=0.01)


def test_short_requests_wait_for_long_ones():
    measured = mean_latency([0.5, 3.0], [[1, 1, [0, 1]]], poisson(0.6, shares=(0.8, 0.2)))
    assert measured == pytest.approx(1.0 + mixture_wait(0.6, [(0.8, 0.5), (0.2, 3.0)]), rel=0.01)


@pytest.mark.parametrize("load", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_two_models_on_two_devices(load, share):
    workload = poisson(load, shares=(share, 1 - share))
    apart = mean_latency([1.0, 1.0], [[1, 1, [0]], [1, 1, [1]]], workload)
    if load * max(share, 1 - share) < 1:
        assert apart == pytest.approx(simple_latency(load, 1.0, share), rel=0.01)
    together = mean_latency([1.0, 1.0], [[1, 2, [0, 1]]], workload)
    assert together == pytest.approx(pipeline_latency(load, 1.0, 0.5), rel=0.01)


def test_uneven_stages():
    workload = poisson(1.0, shares=(0.5, 0.5))
    measured = mean_latency([1.0, 1.0], [[1, 2, [0, 1]]], workload, stages=(0.4, 0.6))
    assert measured == pytest.approx(pipeline_latency(1.0, 1.0, 0.6), rel=0.01)


def test_the_motivating_example():
    """Two models of 0.395 s at 3 requests per second together, evenly and 20 to 80."""
    both = [[1, 1, [0]], [1, 1, [1]]]
    even, skewed = poisson(3.0, (0.5, 0.5)), poisson(3.0, (0.2, 0.8))
    pipeline = mean_latency([0.395] * 2, [[1, 2, [0, 1]]], even)
    assert mean_latency([0.395] * 2, both, even) / pipeline == pytest.approx(1.27, abs=0.02)
    assert mean_latency([0.395] * 2, both, skewed) / pipeline == pytest.approx(6.1, rel=0.1)  # 95 % busy: wide error


def test_the_motivating_example_with_bursts():
    """The same two models, each with gamma arrivals of CV 3: the paper's figure is about 1.9."""
    rngs = np.random.default_rng(3).spawn(2)
    bursty = merge([gamma_times(1.5, 3.0, ARRIVALS / 3.0, rng) for rng in rngs])
    apart = mean_latency([0.395] * 2, [[1, 1, [0]], [1, 1, [1]]], bursty)
    assert apart / mean_latency([0.395] * 2, [[1, 2, [0, 1]]], bursty) == pytest.approx(1.97, abs=0.08)
