"""`paceline serve` before anything is started: its help, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.cli.show_plan import plan_record
from paceline.errors import InvalidParameter
from paceline.placement.case_file import case_from
from paceline.placement.search import NAMES, plan
from paceline.serving.cluster.plan import plan_of

PLAN = {"groups": [[1, 1, [0]]], "models": ["a"]}


def test_it_explains_itself():
    text = CliRunner().invoke(app, ["serve", "--help"]).stdout
    assert "Examples" in text
    assert "--cluster" in text


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["some-model", "--cluster", "PLAN"], "model"),
        (["--cluster", "nowhere.json"], "cluster"),
        (["--cluster", "PLAN", "--threads", "2"], "cluster"),
        (["--cluster", "PLAN", "--weights", "a"], "weights"),
        (["--cluster", "PLAN", "--weights", "b=x"], "model"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments, field, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    result = CliRunner().invoke(app, ["serve", *(str(path) if a == "PLAN" else a for a in arguments)])
    assert isinstance(result.exception, InvalidParameter)
    assert result.exception.field == field


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
