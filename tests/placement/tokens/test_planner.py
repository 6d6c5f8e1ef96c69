"""Plans for language models: batching, memory for keys and values, promises on tokens; and the plan file they make."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.placement import Placement, read_case, simulate
from paceline.placement.case_file import case_from
from paceline.placement.search import plan
from paceline.placement.serving_simulator import ServingModel, TokenRequest, simulate_serving
from paceline.placement.tokens import TokenModel, TokenProfile, TokenRequests, simulate_tokens
from paceline.placement.tokens.requests import drawn_lengths
from paceline.placement.workload import Workload
from paceline.scheduling import SchedulerConfig
from paceline.serving.cluster.plan import read_plan
from paceline.speculation import CostProfile

CURVE = {1: 1 / 112, 16: 16 / 447, 64: 64 / 513}
"""A measured int8 curve of a small model: rows to seconds."""


def case(devices=1, rate=2.5, tokens=None, entry=None, models=None, duration=120, **model):
    entry = {"tokens": {"seconds": {"0": CURVE}} | (tokens or {}), "weight_mem": [1e8]} | (entry or {})
    one = {"name": "a", "type": "p", "rate": rate, "slo": 6.0, "prompt_tokens": 8, "output_tokens": 128} | model
    values = {
        "num_devices": devices, "mem_budget": 1e9, "duration": duration, "models": models or [one],
        "profiles": {"p": [entry]},
    }  # fmt: skip
    return case_from(values, Path(), "x")


def test_one_device_is_enough_where_its_engine_runs_many_requests_at_once():
    assert plan(case()).slo_attainment > 0.99
    alone = [plan(case(devices, tokens={"seats": 1})).slo_attainment for devices in (1, 3)]
    assert alone[0] < 0.6 < alone[1]


def test_a_group_is_busy_all_the_time_at_most():
    """Requests that come faster than they are answered keep it busy long after the last of them came."""
    busy = simulate(Placement.from_lists([[1, 1, [0]]]), case(rate=40.0, slo=600.0, duration=30)).utilization
    assert 0.9 < busy[0, 0] <= 1.0


@pytest.mark.parametrize("rate", [2.0, 3.5])
def test_simulated_attainment_is_that_of_the_engines_own_scheduler(rate):
    """The real scheduler, pass by pass, on the same arrivals, where nobody is turned away."""
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(1 / rate, 250))
    prompts, outputs = rng.integers(4, 120, 250), rng.integers(20, 200, 250)
    config = SchedulerConfig(prefix_caching=False)
    model = ServingModel(CostProfile(CURVE), config=config, num_pages=100_000)
    requests = [TokenRequest(*each) for each in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)]
    real = simulate_serving(requests, model)
    arrivals = TokenRequests(Workload(times, np.zeros(250, np.int32)), prompts, outputs)
    ours = simulate_tokens(arrivals, [TokenModel("a")], [{"a": TokenProfile({0: CURVE})}])
    for slo in (3.0, 5.0, 8.0):
        assert (ours.latency <= slo).mean() == pytest.approx((real.latency <= slo).mean(), abs=0.05)
    assert np.median(ours.first) == pytest.approx(np.median(real.ttft), rel=0.1)


def test_memory_for_keys_and_values_limits_who_runs_at_once():
    roomy = plan(case(entry={"kv_bytes": 1e3})).slo_attainment
    tight = plan(case(entry={"kv_bytes": 9e8 / 300})).slo_attainment  # two requests of 136 tokens
    assert roomy > 0.99 > 0.8 > tight
    with pytest.raises(InvalidParameter, match=r"^mem_budget: leaves room for keys and values of 1\d\d tokens"):
        plan(case(entry={"kv_bytes": 9e8 / 130}))


def test_promises_on_first_token_and_pace_decide():
    assert plan(case(slo=None, slo_first=1.0, slo_token=0.05)).slo_attainment > 0.99
    for promise, problem in (
        ({"slo_token": 1e-4}, r"^slo_token: 0\.0001 s .* further tokens take a lone request 0\.00\d+ s"),
        ({"slo_first": 1e-3}, r"^slo_first: 0\.001 s .* first token takes a lone request 0\.\d+ s"),
        ({"slo": 0.1, "slo_first": 1.0}, r"^slo: 0\.1 s .* request alone takes \d\.\d+ s"),
    ):
        with pytest.raises(InvalidParameter, match=problem):
            plan(case(**{"slo": None} | promise))
    slower = plan(case(slo=None, slo_token=0.012)).slo_attainment
    assert slower < plan(case(slo=None, slo_token=0.05)).slo_attainment


def test_speculation_is_more_tokens_from_a_pass_of_more_rows():
    drafted = {"tokens_per_pass": 2.5, "rows_per_request": 4, "draft_seconds": 0.001}
    placement = Placement.from_lists([[1, 1, [0]]])
    plain = simulate(placement, case(rate=0.3)).mean_latency_served
    assert simulate(placement, case(rate=0.3, tokens=drafted)).mean_latency_served < 0.75 * plain


@pytest.mark.parametrize("cv", [0.0, 1e-300, 1e-9])
def test_lengths_that_hardly_vary_are_all_alike(cv):
    assert set(drawn_lengths(5.4, cv, 9, np.random.default_rng(0))) == {5.0}


def test_acceptance_says_what_a_pass_brings():
    def made(**speculation):
        values = {"seconds": {"0": {"1": 0.01}}, "draft_seconds": 0.001} | speculation
        return TokenProfile.read(values, "tokens")

    once = made(acceptance=0.5, num_draft_tokens=3)
    assert (once.tokens_per_pass, once.rows_per_request) == (1 + 0.5 + 0.25 + 0.125, 4)
    assert made(acceptance=[0.5, 0.5, 0.5]) == once
    assert made(acceptance=[0.9, 0.5]).tokens_per_pass == pytest.approx(1 + 0.9 + 0.45)
    for wrong in (
        {"acceptance": 0.5}, {"num_draft_tokens": 3}, {"acceptance": 1.5, "num_draft_tokens": 3},
        {"acceptance": [0.5, 2]}, {"acceptance": "most", "num_draft_tokens": 3},
        {"acceptance": [0.5], "num_draft_tokens": 3}, {"acceptance": [0.5], "tokens_per_pass": 2},
    ):  # fmt: skip
        with pytest.raises(InvalidParameter, match=r"^tokens\.(acceptance|num_draft_tokens|tokens_per_pass)"):
            made(**wrong)


def test_a_plan_file_configures_queues_and_engines(tmp_path):
    values = {
        "num_devices": 2, "mem_budget": 1e9, "duration": 60,
        "models": [
            {"name": name, "type": "p", "rate": 1, "slo_first": 2.0, "prompt_tokens": 20, "output_tokens": 40,
             "length_cv": 0.5, "speculative": "suffix"} for name in "ab"
        ],
        "profiles": {"p": [
            {"tokens": {"seconds": {"0": {"1": 0.01, "16": 0.04}}, "seats": 8}, "kv_bytes": 1e5, "weight_mem": [3e8]},
        ]},
    }  # fmt: skip
    path, out = tmp_path / "case.json", tmp_path / "plan.json"
    path.write_text(json.dumps(values))
    result = CliRunner().invoke(app, ["place", "--case", str(path), "--output", str(out), "--json"])
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert record["slo_attainment"] > 0.95
    made = read_plan(out)
    assert made.models[0].seats == 8 and made.models[0].slo_first == 2.0
    assert 0 < made.models[0].engine["kv_cache_memory_bytes"] < 1e9
    assert made.models[0].speculative == "suffix"
    assert made.models[0].options["pipeline_head_share"] == 320 / 340  # 40 tokens, each as 8 rows, beside 20 rows
    assert {type(queue).__name__ for queue in made.queues()} == {"TokenQueue"}
    same = CliRunner().invoke(app, ["simulate", "--plan", str(out), "--case", str(path), "--json"])
    assert json.loads(same.stdout)["slo_attainment"] == record["slo_attainment"]


def test_arrivals_may_say_how_long_requests_are(tmp_path):
    (tmp_path / "a.csv").write_text("time,model,prompt,answer\n0,a,10,20\n1,a,30,40\n")
    values = {"num_devices": 1, "mem_budget": 1e9, "arrivals": "a.csv", "models": [{"name": "a", "type": "p"}],
              "profiles": {"p": [{"tokens": {"seconds": {"0": {"1": 0.01}}}, "weight_mem": [1.0]}]}}  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(values))
    workload = read_case(tmp_path / "c.json").workload
    assert workload.prompt_tokens is not None and workload.prompt_tokens.tolist() == [10, 30]
    assert workload.scale_rate(2.0).output_tokens.tolist() == [20, 40]  # type: ignore[union-attr]
    assert workload.between(0.5, 2.0).output_tokens.tolist() == [40]  # type: ignore[union-attr]
    (tmp_path / "a.csv").write_text("time,model,prompt,answer\n0,a,10\n")
    with pytest.raises(InvalidParameter, match="line 2"):
        read_case(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"latency": [0.1]}, "tokens and latency"),
        ({"tokens": {"seconds": {"0": {}}}}, "no table"),
        ({"tokens": {"seconds": {"0": {"one": 1}}}}, "whole numbers up to 2147483648 as keys"),
        ({"tokens": {"seconds": {str(10**400): {"1": 1}}}}, "as keys"),
        ({"tokens": {"seconds": {"0": {"1": 1}}, "stages": 10**9}}, "for a split of 1"),
        ({"tokens": {"seconds": {"0": {"1": 1}}, "overlap": 0.5}}, "overlap: 0.5 with 1 stages"),
        ({"tokens": {"seconds": {"0": {"1": 1}}, "seat": 3}}, "did you mean seats"),
        ({"kv_bytes": -1}, "kv_bytes"),
    ],
)
def test_what_cannot_be_used_is_named(entry, problem):
    with pytest.raises(InvalidParameter, match=problem):
        case(entry=entry)
