"""Plans for other runtimes, read back: the same groups, models, splits and options."""

import json
import os
import shlex
import subprocess

import pytest
import yaml
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.errors import InvalidParameter
from paceline.models.heads.files import save_head
from paceline.serving.cluster.export import TARGETS, export, part_of, remarks
from paceline.serving.cluster.plan import plan_of
from tests.models.heads.tiny_heads import OURS, THEIRS, random_head

ENGINE = {"max_num_seqs": 16, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 10**9}
PLAN = plan_of({
    "groups": [[1, 2, [0, 1]], [2, 1, [0]], [2, 1, [0]]],
    "models": [
        {"name": "chat", "path": "org/chat", "slo_first": 1.0, "engine": ENGINE, "num_tokens": 100},
        {"name": "it's code", "path": "co de.gguf", "slo": 2.0, "prompt_tokens": 9, "speculative": {"method": "ngram"}},
    ],
})  # fmt: skip


def words(line):
    """Options of a line of the script, and the devices that it sees."""
    devices, _, command = line.removesuffix(" &").partition(" ")
    parts = shlex.split(command)
    assert parts[:2] == ["vllm", "serve"]
    return devices.removeprefix("CUDA_VISIBLE_DEVICES="), parts[2], dict(zip(parts[3::2], parts[4::2], strict=True))


def commands(plan, **options):
    lines = map(str.strip, export(plan, "vllm", **options).splitlines())
    return [line for line in lines if line.startswith("CUDA")]


def test_vllm_commands_have_the_splits_options_and_devices_of_the_plan():
    lines = commands(PLAN, devices_per_node=4)
    found = [words(line) for line in lines]
    assert [devices for devices, _, _ in found] == ["0,1", "0,1", "2,3", "0,1"]  # the last on another node
    assert [path for _, path, _ in found] == ["org/chat", "co de.gguf", "org/chat", "org/chat"]
    splits = [(o["--tensor-parallel-size"], o["--pipeline-parallel-size"]) for _, _, o in found]
    assert splits == [("1", "2"), ("1", "2"), ("2", "1"), ("2", "1")]
    assert found[0][2]["--max-num-seqs"] == "16" and found[0][2]["--kv-cache-memory-bytes"] == "1000000000"
    assert float(found[1][2]["--gpu-memory-utilization"]) == 0.45  # it shares its devices with another engine
    assert len({options["--port"] for _, _, options in found}) == 4


def test_a_script_for_several_nodes_starts_what_is_on_the_one_it_is_told(tmp_path):
    (tmp_path / "vllm").write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $2"\n')
    (tmp_path / "vllm").chmod(0o755)
    (tmp_path / "start.sh").write_text(export(PLAN, "vllm", devices_per_node=4))

    def run(*node):
        told = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(["sh", tmp_path / "start.sh", *node], env=told, capture_output=True, text=True)

    assert sorted(run("0").stdout.splitlines()) == ["0,1 co de.gguf", "0,1 org/chat", "2,3 org/chat"]
    assert run("1").stdout.splitlines() == ["0,1 org/chat"]
    for wrong in ((), ("2",)):
        assert run(*wrong).returncode == 2 and "one of 0, 1" in run(*wrong).stderr


def test_options_that_vllm_does_not_have_are_told_and_types_that_it_has_are_kept():
    engines = [{"dtype": "w8a8", "scheduler": "orca"}, {"dtype": "float16", "max_num_seqs": 4}]
    models = [{"name": f"org/{i}", "engine": engine} for i, engine in enumerate(engines)]
    plan = plan_of({"groups": [[1, 1, [0]], [1, 1, [1]]], "models": models})
    assert remarks(plan, "vllm") == [
        "org/0: dtype=w8a8, scheduler=orca of its engine is left out, which vLLM does not have"
    ]
    assert remarks(plan, "kubernetes") == []
    first, second = (words(line)[2] for line in commands(plan))
    assert "--dtype" not in first and second["--dtype"] == "float16"


@pytest.mark.parametrize("target", TARGETS)
def test_models_without_weights_and_without_a_group_are_told(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["chat", "rare", "org/code", {"name": "own", "path": "own.gguf"}]
    (tmp_path / "plan.json").write_text(json.dumps({"groups": [[1, 1, [0, 2, 3]]], "models": names}))
    done = CliRunner().invoke(app, ["export", "plan.json", "--to", target])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "chat: its weights are not known; name them with --weights 'chat=MODEL'",
        "rare: no group of the plan holds it, so it is left out",
    ]
    named = CliRunner().invoke(app, ["export", "plan.json", "--to", target, "--weights", "chat=org/chat"])
    assert "chat" not in named.stderr and "org/chat" in named.stdout


def test_only_our_own_engines_know_built_in_models():
    plan = plan_of({"groups": [[1, 1, [0]]], "models": ["smollm2-135m"]})
    assert [len(remarks(plan, target)) for target in ("vllm", "ray-serve", "kubernetes", "compose")] == [1, 1, 0, 0]
    plan = plan.with_paths({"smollm2-135m": "org/other"})
    assert remarks(plan, "vllm") == []
    renamed = plan_of({"groups": [[1, 1, [0]]], "models": [{"name": "chat", "path": "smollm2-135m"}]})
    assert ["vLLM does not know" in remark for remark in remarks(renamed, "vllm")] == [True]
    assert remarks(renamed, "compose") == []


def drafting(speculative, group=(1, 1, [0])):
    return plan_of({"groups": [list(group)], "models": [{"name": "a", "path": "org/a", "speculative": speculative}]})


HEAD = {"method": "eagle3", "num_draft_tokens": 3, "options": {"model": "heads/e3"}}


@pytest.mark.parametrize(
    ("speculative", "wanted"),
    [
        (
            {"method": "ngram", "num_draft_tokens": 4, "options": {"prompt_lookup_max": 5}},
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 1},
        ),
        ("suffix", {"method": "suffix", "num_speculative_tokens": 8}),
        (
            {"method": "draft_model", "model": "org/small", "num_draft_tokens": 2},
            {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 2},
        ),
        (HEAD, {"method": "eagle3", "model": "heads/e3", "num_speculative_tokens": 3}),
        (
            HEAD | {"method": "mlp_speculator"},
            {"method": "mlp_speculator", "model": "heads/e3", "num_speculative_tokens": 3},
        ),
        ({"method": "mtp", "num_draft_tokens": 1}, {"method": "mtp", "num_speculative_tokens": 1}),
        ({"method": "ngram", "num_draft_tokens": 0}, None),
        ("none", None),
    ],
)
def test_vllm_and_ray_serve_draft_as_the_plan_says(speculative, wanted):
    plan = drafting(speculative)
    (line,) = commands(plan)
    told = words(line)[2].get("--speculative-config")
    assert (told and json.loads(told)) == wanted
    (application,) = yaml.safe_load(export(plan, "ray-serve"))["applications"]
    assert application["args"]["llm_configs"][0]["engine_kwargs"].get("speculative_config") == wanted


def test_vllm_is_told_what_a_head_is(tmp_path):
    """It would go by the folder's name; a folder that cannot be read here has to be named by its family."""
    folder = save_head(random_head(OURS["eagle3.1"]), tmp_path / "mine")
    plan = drafting({"method": "head", "model": str(folder), "num_draft_tokens": 3})
    (application,) = yaml.safe_load(export(plan, "ray-serve"))["applications"]
    told = application["args"]["llm_configs"][0]["engine_kwargs"]["speculative_config"]
    assert told == {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3}
    hydra = save_head(random_head(THEIRS["hydra"][0]), tmp_path / "hydra", layout=THEIRS["hydra"][1])
    for model, matching in (("heads/e3", "must be told"), (str(hydra), "no hydra heads")):
        with pytest.raises(InvalidParameter, match=rf"models.a.speculative.*{matching}.*eagle3"):
            export(drafting({"method": "head", "model": model}), "vllm")


@pytest.mark.parametrize("target", ["vllm", "ray-serve"])
@pytest.mark.parametrize(
    ("speculative", "matching"),
    [
        ("layer_skip", "no drafter 'layer_skip'"),
        ("auto", "no drafter 'auto'"),
        ("eagle3", "names no model"),
        ({"method": "medusa", "options": {"model": "auto"}}, "names no model"),
        (HEAD | {"options": {"model": "heads/e3", "tree": "dynamic"}}, "no option 'tree'"),
        ({"method": "ngram", "model": "org/small"}, "takes no model"),
        ({"method": "ngram", "rule": "typical"}, "no rule 'typical'"),
    ],
)
def test_what_vllm_cannot_draft_is_refused(target, speculative, matching):
    with pytest.raises(InvalidParameter, match=matching):
        export(drafting(speculative), target)
    assert export(drafting(speculative), "compose") and export(drafting(speculative), "kubernetes")


def test_drafts_in_a_pipeline_come_with_a_warning():
    for target in ("vllm", "ray-serve"):
        assert "does not go with pipelines" in export(drafting("ngram", (1, 2, [0])), target)
        assert "does not go with pipelines" not in export(drafting("ngram"), target)


def test_a_group_larger_than_a_node_is_no_vllm_command():
    with pytest.raises(InvalidParameter, match="devices_per_node"):
        export(PLAN, "vllm", devices_per_node=1)


def test_ray_serve_has_a_deployment_per_model_and_split():
    (application,) = yaml.safe_load(export(PLAN, "ray-serve"))["applications"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    configs = {c["model_loading_config"]["model_id"]: c for c in application["args"]["llm_configs"]}
    assert set(configs) == {"chat-1x2-with-0-1", "chat-2x1-with-0", "it's code"}
    wide = configs["chat-2x1-with-0"]
    assert wide["deployment_config"] == {"num_replicas": 2, "max_ongoing_requests": 16}
    assert wide["placement_group_config"]["bundles"] == [{"GPU": 1, "CPU": 1}] * 2
    assert wide["engine_kwargs"]["tensor_parallel_size"] == 2
    assert configs["it's code"]["placement_group_config"]["bundles"] == [{"GPU": 0.5, "CPU": 1}] * 2


def test_ray_serve_accepts_its_config():
    schema = pytest.importorskip("ray.serve.schema")
    schema.ServeDeploySchema.model_validate(yaml.safe_load(export(PLAN, "ray-serve")))


def read_back(files):
    """Groups (tensor, pipeline, names) and engine options by name, from parts of the plan."""
    plans = [plan_of(json.loads(text)) for text in files]
    groups = [
        (g.parallel.tensor, g.parallel.pipeline, tuple(spec.name for spec in plan.held_by(0)))
        for plan in plans
        for g in plan.placement.groups
    ]
    return groups, {spec.name: spec for plan in plans for spec in plan.models}


WANTED = [(1, 2, ("chat", "it's code")), (2, 1, ("chat",)), (2, 1, ("chat",))]


def test_kubernetes_runs_every_group_and_finds_every_model():
    parts = list(yaml.safe_load_all(export(PLAN, "kubernetes")))
    of_kind = {kind: [p for p in parts if p["kind"] == kind] for kind in ("ConfigMap", "StatefulSet", "Service")}
    groups, specs = read_back([part["data"]["plan.json"] for part in of_kind["ConfigMap"]])
    assert groups == WANTED
    assert {spec.name: spec for spec in PLAN.models} == specs
    for part, (tensor, pipeline, _) in zip(of_kind["StatefulSet"], WANTED, strict=True):
        pod = part["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": str(tensor * pipeline)}
        assert part["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    labels = [part["spec"]["template"]["metadata"]["labels"].items() for part in of_kind["StatefulSet"]]
    reached = [sum(s["spec"]["selector"].items() <= each for each in labels) for s in of_kind["Service"]]
    assert reached == [3, 1]


def test_compose_runs_every_group_on_devices_of_its_own():
    values = yaml.safe_load(export(PLAN, "compose"))
    groups, specs = read_back([config["content"].replace("$$", "$") for config in values["configs"].values()])
    assert groups == WANTED and {spec.name: spec for spec in PLAN.models} == specs
    devices = []
    for name, service in values["services"].items():
        assert service["configs"][0]["source"] == name
        devices += service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    assert devices == [str(i) for i in range(6)]


@pytest.mark.parametrize(
    ("resource", "wanted"), [("nvidia.com/gpu", ["--device", "cuda"]), ("cpu", ["--num-cpus", "2"])]
)
def test_containers_run_on_the_devices_that_they_ask_for(resource, wanted):
    sets = [p for p in yaml.safe_load_all(export(PLAN, "kubernetes", resource=resource)) if p["kind"] == "StatefulSet"]
    commands = [part["spec"]["template"]["spec"]["containers"][0]["args"] for part in sets]
    commands += [
        one["command"] for one in yaml.safe_load(export(PLAN, "compose", resource=resource))["services"].values()
    ]
    assert [command[-2:] for command in commands] == [wanted] * 6


def test_each_target_says_where_a_type_of_devices_is():
    typed = plan_of({"groups": [[1, 1, [0], "l4"], [1, 2, [1], "h100"], [1, 1, [0], "h100"]], "models": ["a", "b"]})
    (application,) = yaml.safe_load(export(typed, "ray-serve"))["applications"]
    configs = {c["model_loading_config"]["model_id"]: c for c in application["args"]["llm_configs"]}
    types = {name: config["accelerator_type"] for name, config in configs.items()}
    assert types == {"a-1x1-l4-with-0": "L4", "b": "H100", "a-1x1-h100-with-0": "H100"}
    parts = yaml.safe_load_all(export(typed, "kubernetes"))
    pods = [part["spec"]["template"]["spec"] for part in parts if part["kind"] == "StatefulSet"]
    assert [pod["nodeSelector"] for pod in pods] == [{"paceline/device": each} for each in ("l4", "h100", "h100")]
    script = export(typed, "vllm", devices_per_node=2).splitlines()
    places = ["l4-0)", "# group 0", "h100-0)", "# group 1", "h100-1)", "# group 2"]
    assert [line.strip() for line in script if line.strip() in places] == places
    with pytest.raises(InvalidParameter, match="'l4'"):
        export(typed, "compose")


def test_a_part_keeps_what_is_known_of_times():
    timed = plan_of({
        "groups": [[1, 1, [0]], [1, 2, [1]]], "models": ["a", "b"], "stage_seconds": [[[0.1]], [[0.2, 0.3]]],
        "overhead": 0.01,
    })  # fmt: skip
    part = part_of(timed, 1)
    assert part["stage_seconds"] == [[[0.2, 0.3]]] and part["overhead"] == 0.01


def test_other_targets_are_refused():
    assert set(TARGETS) == {"vllm", "ray-serve", "kubernetes", "compose"}
    with pytest.raises(InvalidParameter, match="'slurm'"):
        export(PLAN, "slurm")
