"""The GPU's benchmark on CPU tensors: every part runs on a tiny model, and its checks hold there."""

import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

pytest.importorskip("torch")

import gpu
from gpu_parts.bench import Bench
from gpu_parts.stand_ins import RandomWeights, make_lookups, qwen_config

OTHERS = [name for name in gpu.PARTS if name not in ("transformers", "real")]


@pytest.fixture(scope="module")
def report():
    return gpu.measure("cpu", quick=True, minutes=5, parts=OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_every_part_runs(report, name):
    part = report["parts"][name]
    assert "failed" not in part and "skipped" not in part


def test_what_must_hold_holds_on_a_cpu(report):
    parts, targets = report["parts"], report["targets"]
    assert parts["draws"]["same_picks"] == 1
    assert max(v for name, v in parts["kernels"].items() if name != "seconds") < 1e-4
    assert parts["identity"]["deterministic"]["same"] == parts["identity"]["deterministic"]["texts"]
    assert parts["identity"]["deterministic"]["drafted"] > 0
    assert all(targets[name] for name in targets if name.startswith(("parity", "same argmax", "deterministic")))
    kinds = {name: kind for name, kind in parts["families"].items() if name != "seconds" and "skipped" not in kind}
    assert len(kinds) > 9 and all(kind["largest_difference_in_deviations"] < 1e-3 for kind in kinds.values())


def test_the_stand_in_for_lookups_lets_the_device_make_them():
    bench = Bench("cpu", quick=True, deadline=inf)
    assert bench.engine(bench.model, 4, drafter=make_lookups()).cache.lookups is not None


def test_a_model_that_people_use_must_be_named():
    assert "--model" in gpu.measure("cpu", quick=True, minutes=5, parts=["real"])["parts"]["real"]["skipped"]


def test_no_part_begins_after_its_time():
    report = gpu.measure("cpu", quick=True, minutes=0, parts=["bandwidth", "parity"])
    assert report["parts"]["bandwidth"]["skipped"] == report["parts"]["parity"]["skipped"] == "no time left"
    assert set(report["targets"].values()) == {None}


@pytest.mark.parametrize("wrong", ["--device bogus", "--device cpu --model nowhere.gguf", "--parts nothing"])
def test_what_cannot_run_is_refused_in_a_line_before_anything_runs(wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *wrong.split()])
    with pytest.raises(SystemExit):
        gpu.main()
    said = capsys.readouterr()
    assert not said.out
    option, value = wrong.split()[-2:]
    assert said.err.splitlines()[-1].startswith(f"gpu.py: error: argument {option}: ") and value in said.err


def test_a_part_that_fails_does_not_end_the_others():
    report = gpu.measure("meta", quick=True, minutes=1, parts=["draws", "bandwidth"])
    assert "failed" in report["parts"]["draws"]
    assert "failed" not in report["parts"]["bandwidth"]


WITHOUT_PACKAGES = """
import gpu_parts.stand_ins as stand_ins
stand_ins.find_spec = lambda name: None
import gpu
report = gpu.measure("cpu", True, 5, ["identity"])
assert report["placeholders"] == ["tokenizers", "safetensors"], report
assert report["parts"]["identity"]["deterministic"]["same"] == 4, report
"""


def test_an_engine_runs_where_packages_for_files_are_missing():
    folders = os.pathsep.join(str(Path(gpu.__file__).parents[up]) for up in (0, 1))
    command = [sys.executable, "-c", WITHOUT_PACKAGES]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": folders}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_random_weights_have_no_equal_rows():
    weights = RandomWeights(qwen_config("quick")).tensor("model.embed_tokens.weight")
    assert len({row.tobytes() for row in weights}) == len(weights)
