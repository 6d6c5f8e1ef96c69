"""Groups that only read prompts and groups that only generate: times by hand, when they pay, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.placement.case_file import case_from
from paceline.placement.search import plan
from paceline.placement.search.disaggregated import separate_roles
from paceline.placement.tokens import TokenModel, TokenProfile, TokenRequests, simulate_tokens
from paceline.placement.tokens.pools import Pools, simulate_pools
from paceline.placement.workload import Workload

LEVEL = {"a": TokenProfile({0: {1: 0.125, 64: 0.125}}, {0: {1: 0.25, 64: 0.25, 128: 0.5}}, token_budget=64)}
"""A step that decodes takes an eighth of a second, one that reads 64 tokens a quarter."""


def asked(times, prompts, outputs):
    return TokenRequests(Workload(np.array(times), np.zeros(len(times), int)), np.array(prompts), np.array(outputs))


def test_a_request_is_read_moved_and_generated():
    requests = asked([1.0, 1.0, 5.0], [64, 128, 64], [5, 3, 1])
    found = simulate_pools(requests, [TokenModel("a")], Pools([LEVEL], [LEVEL], {"a": 1 / 128}), 0.25)
    assert found.first.tolist() == [0.5, 1.0, 0.5]  # the second is read after the first, in two steps
    assert found.latency[0] == 0.25 + 0.25 + 64 / 128 + 4 * 0.125
    assert found.latency[1] == 0.25 + 0.75 + 128 / 128 + 2 * 0.125
    assert found.latency[2] == found.first[2], "one token needs no second pool"
    assert found.routes.tolist() == [0, 0, 0] and found.busy.tolist() == [1.0, 0.75]


def test_who_would_be_late_in_either_pool_is_turned_away():
    requests = asked([0.0, 0.0], [64, 64], [5, 5])
    for slo, in_time in ((0.74, [False, False]), (0.75, [True, False]), (1.0, [True, True])):
        found = simulate_pools(requests, [TokenModel("a", slo=slo, expected_tokens=5)], Pools([LEVEL], [LEVEL], {}))
        assert found.in_time.tolist() == in_time
        assert (found.routes >= 0).tolist() == in_time


def case(**changes):
    model = {"name": "a", "type": "p", "rate": 3.0, "slo_first": 2.0, "slo_token": 0.027, "prompt_tokens": 400,
             "output_tokens": 60, "length_cv": 0.5}  # fmt: skip
    tokens = {"seconds": {"0": {1: 0.02, 64: 0.03}}, "prefill_seconds": {"0": {1: 0.02, 512: 0.25}}}
    entry = {"tokens": tokens, "weight_mem": [1e8], "kv_bytes": 1e3}
    values = {"num_devices": 2, "mem_budget": 1e9, "duration": 60, "models": [model], "profiles": {"p": [entry]}}
    return case_from(values | changes, Path(), "x")


def test_separate_pools_pay_where_prompts_break_the_promise_on_pace():
    """A step that reads 400 tokens takes a quarter of a second: who decodes beside many of them is too slow."""
    found = separate_roles(case(), 1e9)
    assert found.slo_attainment > 0.9 > plan(case()).slo_attainment + 0.1
    assert (found.prefill.to_lists(), found.decode.to_lists()) == ([[1, 1, [0]]], [[1, 1, [0]]])
    assert separate_roles(case(), 1e5).slo_attainment < 0.1, "0.4 MB over such a link take 4 s"


def test_pools_that_answer_nobody_in_time_still_have_devices():
    found = separate_roles(case(), 1.0)
    assert found.slo_attainment == 0 and found.prefill.groups and found.decode.groups and found.tried


def test_in_one_group_that_reads_and_generates_the_same_requests_hold_each_other_up():
    requests = asked([0.0, 0.3], [64, 64], [9, 9])
    together = simulate_tokens(requests, [TokenModel("a")], [LEVEL])
    apart = simulate_pools(requests, [TokenModel("a")], Pools([LEVEL], [LEVEL], {}))
    assert apart.pace[0] == 0.125 < together.pace[0]


@pytest.mark.parametrize(
    ("values", "bandwidth", "problem"),
    [
        ({"num_devices": 1}, 1e9, "pools: the cluster has one device"),
        ({}, 0.0, "pools: 0.0"),
        (
            {
                "profiles": {"p": [{"latency": [0.1], "weight_mem": [1.0]}]},
                "models": [{"name": "a", "type": "p", "rate": 1.0}],
            },
            1e9, "one pass each",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_out_is_named(values, bandwidth, problem):
    with pytest.raises(InvalidParameter, match=problem):
        separate_roles(case(**values), bandwidth)


def test_the_command_compares_both(tmp_path):
    from paceline.placement.search.disaggregated import MOST_SHARES  # what is tried stays small

    model = {"name": "a", "type": "p", "rate": 3.0, "slo_first": 2.0, "slo_token": 0.05, "prompt_tokens": 400}
    tokens = {"seconds": {"0": {"1": 0.02, "64": 0.03}}, "prefill_seconds": {"0": {"1": 0.02, "512": 0.25}}}
    values = {"num_devices": 3, "mem_budget": 1e9, "duration": 20, "models": [model | {"output_tokens": 60}],
              "profiles": {"p": [{"tokens": tokens, "weight_mem": [1e8], "kv_bytes": 1e3}]}}  # fmt: skip
    (tmp_path / "case.json").write_text(json.dumps(values))
    command = ["place", "--case", str(tmp_path / "case.json"), "--pools", "10", "--no-held-out", "--effort", "20000"]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0 and "for prompts only and" in told.stdout
    record = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert 0 < record["pools"]["tried"] <= MOST_SHARES and len(record["pools"]["decode"]) in (1, 2)
    (tmp_path / "plan.json").write_text(json.dumps(record))
    simulated = CliRunner().invoke(app, ["simulate", "--plan", str(tmp_path / "plan.json"), *command[1:3]])
    assert simulated.exit_code == 0
