"""The GPU's benchmark on CPU tensors: every part runs on a tiny model, and its checks hold there."""

import pytest

pytest.importorskip("torch")

import gpu
from gpu_parts.stand_ins import RandomWeights, qwen_config

OTHERS = [name for name in gpu.PARTS if name != "transformers"]


@pytest.fixture(scope="module")
def report():
    return gpu.measure("cpu", quick=True, minutes=5, parts=OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_every_part_runs(report, name):
    part = report["parts"][name]
    assert "failed" not in part
    assert ("skipped" in part) == (name == "head_training")


def test_what_must_hold_holds_on_a_cpu(report):
    parts, targets = report["parts"], report["targets"]
    assert parts["draws"]["same_picks"] == 1
    assert max(v for name, v in parts["kernels"].items() if name != "seconds") < 1e-4
    assert parts["identity"]["deterministic"]["same"] == parts["identity"]["deterministic"]["texts"]
    assert parts["identity"]["deterministic"]["drafted"] > 0
    assert all(targets[name] for name in targets if name.startswith(("parity", "same argmax", "deterministic")))


def test_no_part_begins_after_its_time():
    report = gpu.measure("cpu", quick=True, minutes=0, parts=["bandwidth", "parity"])
    assert report["parts"]["bandwidth"]["skipped"] == report["parts"]["parity"]["skipped"] == "no time left"
    assert set(report["targets"].values()) == {None}


def test_a_part_that_fails_does_not_end_the_others():
    report = gpu.measure("meta", quick=True, minutes=1, parts=["draws", "head_training"])
    assert "failed" in report["parts"]["draws"]
    assert "skipped" in report["parts"]["head_training"]


def test_random_weights_have_no_equal_rows():
    weights = RandomWeights(qwen_config(quick=True)).tensor("model.embed_tokens.weight")
    assert len({row.tobytes() for row in weights}) == len(weights)
