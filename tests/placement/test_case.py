"""Case files: read whole, refused with the field's name; and the plain data they are made of."""

import json

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement import NO_SLO, Cluster, ModelProfile, ParallelConfig, PlacedModel, Stages, read_case
from paceline.placement.fields import read_mapping
from tests.placement.cases import GB, make_case

VALUES = {
    "name": "ours",
    "num_devices": 2,
    "mem_budget": 3e9,
    "models": [{"name": "chat", "type": "t", "rate": 2.0, "cv": 3.0, "slo": 0.5}, {"name": "code", "type": "t"}],
    "profiles": {
        "t": [
            {"op": 1, "pp": 1, "latency": [0.1], "weight_mem": [2e9], "batch_latency": {"2": [0.15]}},
            {"op": 2, "pp": 1, "latency": [0.07], "weight_mem": [1e9]},
        ]
    },
    "arrivals": "arrivals.csv",
}


def write(tmp_path, values, arrivals="t,model\n0.1,0\n0.4,code\n"):
    (tmp_path / "arrivals.csv").write_text(arrivals)
    path = tmp_path / "case.json"
    path.write_text(json.dumps(values))
    return path


def test_json(tmp_path):
    case = read_case(write(tmp_path, VALUES))
    assert (case.name, case.cluster) == ("ours", Cluster(2, 3e9))
    assert case.models == (PlacedModel("chat", "t", 2.0, 3.0, 0.5), PlacedModel("code", "t", 0.0, 1.0, NO_SLO))
    assert case.profile_of(1).stages(ParallelConfig(2, 1)).latency == (0.07,)
    assert case.profile_of(1).stages(ParallelConfig(1, 1)).batch_latency[2] == (0.15,)
    assert case.workload.models.tolist() == [0, 1]
    assert case.has_slo


def test_yaml_with_drawn_arrivals(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
num_devices: 1
mem_budget: 4.0e9
duration: 1000
seed: 3
models:
  - {name: chat, type: small, rate: 2, cv: 2}
profiles:
  small:
    - {latency: [0.1], weight_mem: [2.0e9]}
"""
    )
    case = read_case(path)
    assert case.name == "mine" and not case.has_slo
    assert case.workload.rates(1) == pytest.approx([2.0], rel=0.2)
    np.testing.assert_array_equal(case.workload.times, read_case(path).workload.times)


def changed(**changes):
    values = json.loads(json.dumps(VALUES))
    for name, value in changes.items():
        *path, last = name.split("__")
        inner = values
        for step in path:
            inner = inner[int(step) if step.isdigit() else step]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return values


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_devices": None}, "num_devices: missing"),
        ({"num_devices": "many"}, "num_devices: 'many'"),
        ({"num_devices": 0}, "num_devices: 0 is less than 1"),
        ({"num_devices": 1.5}, "num_devices: 1.5"),
        ({"mem_budget": -1}, "mem_budget: -1"),
        ({"models": []}, "models: the list is empty"),
        ({"models__0__SLO": 0.5}, r"models\[0\]: unknown key 'SLO'; did you mean slo\?$"),
        ({"gpus": 2}, "case: unknown key 'gpus'"),
        ({"n_requests": 3}, "arrivals: .*2 requests, n_requests says 3"),
        ({"arrivals_sha256": "00"}, "arrivals: .*does not have arrivals_sha256"),
        ({"mem_budget": float("inf")}, "mem_budget: inf is not finite"),
        ({"models__0__cv": 1e6}, "cv: 1000000.0 for model 'chat'"),
        ({"profiles__t__1__op": 1}, "profiles.t: a split .* is given twice"),
        ({"models": {}}, "models: {}"),
        ({"models__0__rate": -2}, "rate: -2.0 for model 'chat'"),
        ({"models__0__slo": 0}, "slo: 0.0 s for model 'chat'"),
        ({"models__0__name": "code"}, "two are called 'code'"),
        ({"models__0__type": "x"}, "profiles: no profile for type 'x' of model 'chat'"),
        ({"models__0__type": None}, r"models\[0\].type: missing"),
        ({"profiles__t": []}, "'t' has no entries"),
        ({"profiles__t": {"op": 1}}, "profiles.t: is no list"),
        ({"profiles__t__0__latency": [0.1, 0.1]}, "2 stages at batch 1, weight_mem has 1"),
        ({"profiles__t__0__pp": 2}, "has 1 stages, not 2"),
        ({"profiles__t__0__latency": [0]}, r"profiles.t.latency: \[0.0\] s at batch 1 at \(1, 1\)"),
        ({"profiles__t__1__weight_mem": [-1]}, r"profiles.t.weight_mem: \[-1.0\] bytes at \(2, 1\)"),
        ({"profiles__t__1__latency": ["fast"]}, r"profiles.t.latency: 'fast' at \(2, 1\)"),
        ({"profiles__t__0__batch_latency": {"two": [1]}}, "profiles.t.batch_latency"),
        ({"arrivals": "nowhere.csv"}, "arrivals: cannot read"),
        ({"arrivals": None}, "arrivals: missing"),
        ({"arrivals": None, "duration": 9, "n_requests": 2}, "n_requests: .* drawn"),
        ({"arrivals": None, "duration": 9, "arrivals_sha256": "00"}, "arrivals_sha256: .* drawn"),
        ({"duration": 0.3}, "duration: .*arrivals.csv goes on until 0.4 s, duration says 0.3 s"),
    ],
)
def test_bad_cases_are_refused(tmp_path, changes, problem):
    with pytest.raises(InvalidParameter, match=problem):
        read_case(write(tmp_path, changed(**changes)))


@pytest.mark.parametrize(
    ("arrivals", "problem"),
    [
        ("t,model\n", "arrivals: there are none"),
        ("t,model\n0,2\n", "arrivals: model index 2, there are 2 models"),
        ("t,model\n0,poet\n", "line 2"),
        ("t,model\n1,0\n0,0\n", "comes after"),
    ],
)
def test_bad_arrivals_are_refused(tmp_path, arrivals, problem):
    with pytest.raises(InvalidParameter, match=problem):
        read_case(write(tmp_path, VALUES, arrivals))


def test_files_that_are_no_case(tmp_path):
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.yaml", "a: [")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InvalidParameter, match="case: "):
            read_case(tmp_path / name)
    with pytest.raises(InvalidParameter, match="cannot read"):
        read_case(tmp_path / "none.json")


def test_scaling():
    case = make_case()
    assert case.scale_slo(2.0).models[0].slo == 2 * case.models[0].slo
    faster = case.scale_rate(2.0)
    assert faster.models[0].rate == 2 * case.models[0].rate
    assert faster.workload.duration == case.workload.duration / 2
    assert case.with_devices(16).cluster == Cluster(16, 9 * GB)


def test_no_deadline_stays_none():
    case = make_case(slo_scale=100 * NO_SLO)
    assert not case.has_slo and case.scale_slo(0.1).models == case.models


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: ParallelConfig(0, 1), "parallel"),
        (lambda: Stages((1.0,), (-1.0,)), "weight_mem"),
        (lambda: Stages((), ()), "latency"),
        (lambda: ModelProfile("x", {}), "profiles"),
        (lambda: PlacedModel("x", "t", cv=-1), "cv"),
    ],
)
def test_bad_parts_are_refused(call, field):
    with pytest.raises(InvalidParameter) as refused:
        call()
    assert refused.value.field == field


@pytest.mark.parametrize("text", ["a: 1\nb: {c: 1, d: 2, c: 3}", "a: 1\na: 1", "- 1\n- {x: [{y: 1, y: 2}]}"])
def test_a_key_that_is_given_twice_in_yaml_is_refused(tmp_path, text):
    path = tmp_path / "case.yaml"
    path.write_text(text)
    with pytest.raises(InvalidParameter, match="is given twice"):
        read_mapping(path)


def test_yaml_may_give_anew_what_it_merges(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: *b, y: 4}\nd: *a")
    assert read_mapping(path) == {
        "a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 4}, "d": {"x": 1, "y": 2}
    }  # fmt: skip
