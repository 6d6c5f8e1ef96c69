"""Held-out halves, resampled confidence, replanning: what plans are worth beyond the arrivals they were made for."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.placement import Cluster, Workload, simulate
from paceline.placement.arrivals import poisson_times
from paceline.placement.search import plan
from paceline.placement.search.honest import confidence, halves, held_out, interval
from paceline.placement.search.replanning import drifted
from paceline.placement.workload import merge
from tests.placement.cases import GB, even_profile, make_case


def test_halves_are_halves_of_the_time_counted_from_zero():
    workload = Workload(np.array([0.0, 1.0, 6.0, 10.0]), np.array([0, 1, 0, 1]))
    first, rest = halves(workload)
    assert first.times.tolist() == [0.0, 1.0] and rest.times.tolist() == [1.0, 5.0]
    with pytest.raises(InvalidParameter, match="one half"):
        halves(Workload(np.array([0.0]), np.array([0])))


def test_held_out_attainment_is_of_arrivals_the_search_has_not_seen():
    case = make_case(num_small=5, rate=6.0, duration=120.0)
    found = held_out(case, effort=300_000)
    assert found.num_train + found.num_test == case.workload.num_requests
    assert found.low <= found.test <= found.high
    assert found.regret >= 0 and found.hindsight == pytest.approx(found.test + found.regret)
    assert 0 <= found.drift < 0.5 and 0.5 < found.rate_change < 2


def test_intervals_cover_what_long_traces_reach():
    """Of independent short traces, about as many intervals as promised hold the long run's share."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        times = np.sort(rng.random(400)) * 100
        low, high = interval(Workload(times, np.zeros(400, np.int32)), rng.random(400) < 0.8)
        covered += low <= 0.8 <= high
    assert 85 <= covered <= 100


def test_confidence_is_around_the_plans_own_attainment():
    case = make_case(num_small=5, rate=6.0)
    made = plan(case, "mp-search")
    low, high = confidence(case, made.placement)
    assert low <= made.slo_attainment <= high and high - low < 0.2


def drifting(seed=0):
    """Traffic that moves from the first model to the second after half of the time."""
    rng = np.random.default_rng(seed)
    heavy, light = poisson_times(14.0, 300.0, rng), poisson_times(1.0, 300.0, rng)
    other_light, other_heavy = poisson_times(1.0, 300.0, rng), 300.0 + poisson_times(14.0, 300.0, rng)
    case = one_model_a_device(slo_scale=2.0)
    streams = [np.concatenate([heavy, 300.0 + light]), np.concatenate([other_light, other_heavy])]
    return case.with_workload(merge(streams))


def one_model_a_device(**options):
    """Three devices, each with room for one of two models."""
    case = make_case(num_small=2, num_large=0, num_devices=3, **options)
    profiles = {"small": even_profile("small", 0.1, 2 * GB, degrees=(1,))}
    return replace(case, profiles=profiles, cluster=Cluster(3, 3 * GB))


def test_replanning_follows_a_drift_and_leaves_chance_alone():
    case = drifting()
    found = plan(case, "replan", window=30.0)
    placements = [window.placement for window in found.windows]
    changes = sum(a != b for a, b in pairwise(placements))
    assert 1 <= changes <= 4
    static = plan(case.with_workload(case.workload.between(0, 30)), "mp-search").placement
    assert found.slo_attainment > simulate(static, case).slo_attainment + 0.1
    assert found.slo_attainment <= plan(case, "clockwork++", window=30.0).slo_attainment
    steady = one_model_a_device(cv=1.0, duration=300.0)
    assert len({window.placement for window in plan(steady, "replan", window=30.0).windows}) == 1


def test_drift_is_more_than_chance():
    rng = np.random.default_rng(0)
    windows = [merge([poisson_times(5.0, 30.0, rng), poisson_times(1.0, 30.0, rng)]) for _ in range(50)]
    assert not any(drifted(windows[0], each, 30.0, 2) for each in windows)
    assert drifted(windows[0], merge([poisson_times(1.0, 30.0, rng), poisson_times(5.0, 30.0, rng)]), 30.0, 2)


def test_place_says_what_it_reaches_on_the_other_half(tmp_path):
    case = {
        "num_devices": 2, "mem_budget": 4e9, "duration": 200,
        "models": [{"name": n, "type": "t", "rate": 3.0, "slo": 0.4} for n in "ab"],
        "profiles": {"t": [{"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [1e9]}]},
    }  # fmt: skip
    (tmp_path / "case.json").write_text(json.dumps(case))
    words = ["place", "--case", str(tmp_path / "case.json"), "--effort", "20000"]
    done = CliRunner().invoke(app, [*words, "--json"])
    said = json.loads(done.output)
    assert said["held_out"]["regret"] >= 0
    assert said["confidence"][0] <= said["slo_attainment"] <= said["confidence"][1]
    assert "planned on the first half" in CliRunner().invoke(app, words).output
    assert "held_out" not in json.loads(CliRunner().invoke(app, [*words, "--json", "--no-held-out"]).output)
