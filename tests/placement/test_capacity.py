"""The largest rate within promises, against a brute force over rates; and Sarathi-Serve's trade by token budget."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.placement.capacity import TOLERANCE, Promise, Traffic, capacities, capacity, engine_for
from paceline.placement.serving_simulator import ServingModel, simulate_serving
from paceline.placement.tokens import TokenProfile
from paceline.scheduling import SchedulerConfig
from paceline.speculation import CostProfile

CURVE = {1: 0.010, 16: 0.012, 64: 0.020, 256: 0.060, 512: 0.120}
COST = CostProfile(CURVE)
TOKENS = TokenProfile({0: CURVE})
MODEL = ServingModel(COST, config=SchedulerConfig(prefix_caching=False, max_num_seqs=32), num_pages=100_000)
TRAFFIC = Traffic(200, 20, 0.5, num_requests=120)


def test_the_rate_is_the_last_that_keeps_the_promise():
    promise = Promise(between=0.05, first=1.0)
    found = capacity(MODEL, TRAFFIC, promise, 128)
    config = replace(MODEL.config, max_num_batched_tokens=128)
    model = replace(MODEL, config=config)
    kept = [
        rate
        for rate in found.rate * np.linspace(0.8, 1.2, 9)
        if promise.is_kept(simulate_serving(TRAFFIC.requests(rate), model))
    ]
    assert max(kept) <= found.rate * (1 + 2 * TOLERANCE)
    assert found.between <= 0.05 and found.first <= 1.0 and found.token_budget == 128


def test_tight_gaps_want_small_budgets_and_loose_ones_large():
    tight = capacities(MODEL, TRAFFIC, Promise(0.03, 2.0), [64, 512])
    loose = capacities(MODEL, TRAFFIC, Promise(1.0, 2.0), [64, 512])
    assert tight[0].rate > tight[1].rate
    assert loose[1].rate >= loose[0].rate * (1 - 2 * TOLERANCE)


def test_what_even_a_lone_request_breaks_has_no_capacity():
    found = capacity(MODEL, TRAFFIC, Promise(0.005, 1.0))
    assert found.rate == 0 and found.throughput == 0 and np.isnan(found.between)


def test_answers_of_one_token_have_nothing_between_them():
    found = capacity(MODEL, Traffic(200, 1, num_requests=100), Promise(0.05, 1.0))
    assert found.rate > 0 and np.isnan(found.between) and 0 < found.first <= 1.0


def test_the_longest_requests_fit_the_engine():
    traffic = Traffic(16_000, 2, length_cv=1.0, num_requests=100)
    requests = traffic.requests(1e-3)
    longest = max(each.prompt_tokens + each.output_tokens for each in requests)
    engine = engine_for(traffic, replace(TOKENS, seats=2))
    assert engine.config.max_model_len == traffic.longest == longest > 40_000
    assert engine.num_pages * engine.page_size >= 2 * longest
    engine = replace(engine, config=replace(engine.config, max_num_batched_tokens=8192))
    assert simulate_serving(requests, engine).output_tokens.sum() == sum(each.output_tokens for each in requests)


def test_little_memory_lets_fewer_requests_run_at_once():
    traffic = Traffic(64, 8, num_requests=100)
    profiles = TOKENS, TOKENS.with_kv_tokens(160)
    ample, scarce = (simulate_serving(traffic.requests(50.0), engine_for(traffic, profile)) for profile in profiles)
    assert scarce.ttft.mean() > 2 * ample.ttft.mean()
    with pytest.raises(InvalidParameter, match="the longest request has 72"):
        engine_for(traffic, TOKENS.with_kv_tokens(79))


@pytest.mark.parametrize("most", [{"prompt_tokens": 999_999}, {"num_requests": 999_999}])
def test_more_tokens_than_memory_holds_are_refused(most):
    with pytest.raises(InvalidParameter, match="num_requests"):
        Traffic(**({"prompt_tokens": 200, "output_tokens": 20} | most))


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidParameter, match="seed"):
        Traffic(200, 20, seed=-1)


@pytest.mark.parametrize("wrong", [{"between": 0.0}, {"first": -1.0}, {"quantile": 1.0}])
def test_promises_that_are_none_are_refused(wrong):
    with pytest.raises(InvalidParameter):
        Promise(**({"between": 0.1, "first": 1.0} | wrong))


TUNED = {
    "format": "paceline-profile", "version": 1, "model": "m", "fingerprint": "f", "dtype": "int8",
    "executor": "numba", "threads": 1, "machine": "here",
    "seconds": {"0": {"1": 0.01, "64": 0.02, "512": 0.12}}, "prefill_seconds": {"0": {"16": 0.012}},
}  # fmt: skip


@pytest.mark.parametrize("dearer", [
    {"prefill_seconds": {"0": {"16": 0.12}}}, {"segment_seconds": {"0": 0.01}}, {"step_overhead": 0.1},
])  # fmt: skip
def test_all_that_was_measured_counts(tmp_path, dearer):
    told = []
    for name, values in (("plain", TUNED), ("dearer", TUNED | dearer)):
        (tmp_path / name).write_text(json.dumps(values))
        done = CliRunner().invoke(app, [
            "capacity", str(tmp_path / name), "--between-ms", "900", "--first-ms", "500", "--num-requests", "100",
            "--prompt-tokens", "64", "--output-tokens", "2", "--token-budget", "64", "--json",
        ])  # fmt: skip
        assert done.exit_code == 0, done.exception
        told.append(json.loads(done.stdout)["capacities"][0]["rate"])
    assert told[1] < 0.8 * told[0]


def test_the_command_names_the_best_budget(tmp_path):
    (tmp_path / "tuned.json").write_text(json.dumps(TUNED))
    words = ["--between-ms", "50", "--first-ms", "1000", "--token-budget", "32", "--token-budget", "128"]
    done = CliRunner().invoke(app, [
        "capacity", str(tmp_path / "tuned.json"), *words, "--num-requests", "100", "--prompt-tokens", "100",
        "--output-tokens", "32", "--json",
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["best_token_budget"] in (32, 128) and len(said["capacities"]) == 2
