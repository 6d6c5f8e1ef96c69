"""`paceline serve` before anything is started: its help, and what it refuses."""

import json
import socket

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.terminal.plans import plan_record
from paceline.errors import InvalidParameter, WorkerDied
from paceline.placement.case_file import case_from
from paceline.placement.search import NAMES, plan
from paceline.serving.cluster.plan import plan_of

PLAN = {"groups": [[1, 1, [0]]], "models": ["a"]}
BOTH = [[1, 1, [0, 1]]]


def test_it_explains_itself():
    text = CliRunner().invoke(app, ["serve", "--help"]).stdout
    assert "Examples" in text
    assert "--cluster" in text


def test_a_repeatable_option_may_be_given_once_in_the_file(tmp_path):
    path, config = tmp_path / "plan.json", tmp_path / "serve.yaml"
    path.write_text(json.dumps(PLAN))
    config.write_text(f"cluster: {path}\nweights: b=some-model\n")
    result = CliRunner().invoke(app, ["serve", "--config", str(config)])
    assert isinstance(result.exception, InvalidParameter), result.output
    assert "'b'" in str(result.exception)  # it was read: the plan has no such model


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["some-model", "--cluster", "PLAN"], "model"),
        (["--cluster", "nowhere.json"], "cluster"),
        (["--cluster", "PLAN", "--threads", "2"], "cluster"),
        (["--cluster", "PLAN", "--weights", "a"], "weights"),
        (["--cluster", "PLAN", "--weights", "b=x"], "model"),
        (["--cluster", "PLAN", "--served-model-name", "x"], "served_model_name"),
        (["--cluster", "PLAN", "--max-model-len", "0"], "max_model_len"),
        (["--cluster", "PLAN", "--max-num-seqs", "0"], "max_num_seqs"),
        (["some-model", "--max-num-seqs", "0"], "max_num_seqs"),
        (["some-model", "--api-key", ""], "api_key"),
        (["some-model", "--api-key", "secret", "--api-key", " "], "api_key"),
        (["some-model", "--host", "localhost:8000"], "host"),
        (["some-model", "--host", "http://localhost"], "host"),
        (["--cluster", "PLAN", "--draft", "nothing"], "drafter"),
        (["--cluster", "PLAN", "--events", "."], "events"),
        (["some-model", "--request-log", "."], "request_log"),
        (["some-model", "--weights", "a=some-model"], "weights"),
        (["some-model", "--num-cpus", "2"], "num_cpus"),
        (["some-model", "--ray-address", "auto"], "ray_address"),
        (["some-model", "--events", "EVENTS"], "events"),
        (["some-model", "--audit-ledger", "LEDGER"], "audit_ledger"),
        (["some-model", "--keep-tokens", "5000"], "keep_tokens"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments, field, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    result = CliRunner().invoke(app, ["serve", *(str(path) if a == "PLAN" else a for a in arguments)])
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


def test_engines_of_a_plan_have_the_options_of_the_command_and_their_own_go_first(tmp_path, monkeypatch):
    ray_groups = pytest.importorskip("paceline.serving.cluster.ray_groups", exc_type=InvalidParameter)
    monkeypatch.setattr("paceline.serving.cluster.preflight.check_loadable", lambda *_: None)
    seen = {}

    def start(plan, *_, **options):
        seen.update(plan=plan, **options)
        raise WorkerDied("enough seen")

    monkeypatch.setattr(ray_groups, "start_groups", start)
    path = tmp_path / "plan.json"
    models = [{"name": "a", "engine": {"max_num_seqs": 3}}, "b", "rare"]
    path.write_text(json.dumps(PLAN | {"models": models, "groups": BOTH}))
    limits = ["--max-num-seqs", "5", "--max-model-len", "640", "--no-parse-special-tokens", "--scheduler", "orca"]
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--cluster", str(path), *limits, "--draft", "suffix"])
    assert isinstance(result.exception, WorkerDied), result.exception
    assert "rare: no group of the plan holds it, so it is not served" in result.stderr
    assert [spec.seats for spec in seen["plan"].held] == [3, 5]
    for spec in seen["plan"].held:
        assert (spec.engine["max_model_len"], spec.engine["scheduler"]) == (640, "orca")
        assert not spec.engine["parse_special_tokens"]
    assert seen["speculative"].method == "suffix"


def test_a_port_that_is_taken_is_told_of_before_groups_are_started(tmp_path, monkeypatch):
    ray_groups = pytest.importorskip("paceline.serving.cluster.ray_groups", exc_type=InvalidParameter)
    monkeypatch.setattr("paceline.serving.cluster.preflight.check_loadable", lambda *_: None)
    monkeypatch.setattr(ray_groups, "start_groups", lambda *_, **__: pytest.fail("groups were started"))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "--cluster", str(path), "--port", port])
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == "port"


def test_what_the_planner_writes_can_be_started(tmp_path):
    stages = [{"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [1.0]}]
    values = {
        "num_devices": 2, "mem_budget": 2.0, "duration": 20, "profiles": {"t": stages},
        "models": [{"name": "a", "type": "t", "rate": 2, "slo": 0.5, "path": "weights"}, {"name": "b", "type": "t"}],
    }  # fmt: skip
    case = case_from(values, tmp_path, "case")
    made = plan_of(json.loads(json.dumps(plan_record(case, plan(case, NAMES[0])))))
    assert (made.models[0].path, made.models[0].slo) == ("weights", 0.5)
    assert (made.models[1].path, made.models[1].slo) == ("b", float("inf"))
    assert made.queues()[0].seconds("a") == pytest.approx([0.1 * 1.009])
    assert made.overhead == 0.011
