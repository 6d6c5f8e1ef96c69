"""A plan for other runtimes: vLLM commands, Ray Serve LLM, Kubernetes, Docker Compose.

vLLM and Ray Serve LLM get an engine for every model of a group, with the plan's speculative decoding where vLLM
supports it (`vllm_speculation.py`); they balance load among replicas by their own rules. Kubernetes and Compose get one
`paceline serve --cluster` per group, with the group's part of the plan. Not for running a plan (`dispatcher.py`).
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from paceline.errors import InvalidParameter
from paceline.models.fetch.download import BUILTIN_MODELS
from paceline.placement.placement import Group
from paceline.serving.cluster.plan import ClusterPlan
from paceline.serving.cluster.vllm_speculation import speculation_of
from paceline.serving.models.model_spec import ModelSpec

FIRST_PORT = 8000
MEMORY_SHARE = 0.9
"""Fraction of a device's memory for all engines of a group, where the plan does not give bytes."""
PIPELINED = (
    "vLLM's documentation (0.14) says that speculation does not go with pipelines; try this before you rely on it"
)
_SHARED = {
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_model_len": "--max-model-len",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
}
"""Options of `EngineConfig` that vLLM has too."""
_DTYPES = ("auto", "bfloat16", "float16", "float32")
"""Our dtypes that vLLM has too."""


def export(
    plan: ClusterPlan, target: str, image: str = "paceline", resource: str = "nvidia.com/gpu", devices_per_node: int = 8
) -> str:
    """The text of a file for `target`, one of `TARGETS`.

    Args:
        image: container image with `paceline` and its extra ``cluster``, for Kubernetes and Compose.
        resource: Kubernetes' resource name of a device; ``cpu`` for processors.
        devices_per_node: for vLLM commands, whose groups must fit into a node.

    Raises:
        InvalidParameter: an unknown target, or a plan that the target cannot express.
    """
    if target not in TARGETS:
        raise InvalidParameter("to", f"{target!r}", f"use one of {', '.join(TARGETS)}")
    return TARGETS[target](plan, image, resource, devices_per_node)


def remarks(plan: ClusterPlan, target: str) -> list[str]:
    """Warnings: models without weights in the plan, models that no group holds, and options that are lost."""
    ours = BUILTIN_MODELS if target in ("kubernetes", "compose") else ()
    told = []
    for index, spec in enumerate(plan.models):
        if all(index not in group.models for group in plan.placement.groups):
            told.append(f"{spec.name}: no group of the plan holds it, so it is left out")
        elif spec.path == spec.name and spec.name not in ours and "/" not in spec.name and not Path(spec.name).exists():
            told.append(f"{spec.name}: its weights are not known; name them with --weights '{spec.name}=MODEL'")
        elif spec.path in BUILTIN_MODELS and not ours:
            problem = f"{spec.path} is a built-in model of Paceline's, which vLLM does not know"
            told.append(f"{spec.name}: {problem}; name others with --weights '{spec.name}=MODEL'")
        if target in ("vllm", "ray-serve") and (lost := _not_in_vllm(spec)):
            told.append(f"{spec.name}: {', '.join(lost)} of its engine is left out, which vLLM does not have")
    return told


def _not_in_vllm(spec: ModelSpec) -> list[str]:
    """Names of a model's engine options that vLLM lacks."""
    return [
        f"{option}={value}"
        for option, value in spec.engine.items()
        if option not in _SHARED and not (option == "dtype" and value in _DTYPES) and value is not None
    ]


def _vllm(plan: ClusterPlan, image: str, resource: str, devices_per_node: int) -> str:
    """A shell script in which engines of one group share its devices. With several nodes, run it on each node with the
    node's name."""
    port, rooms, nodes = FIRST_PORT, dict[str, list[int]](), dict[str, list[str]]()
    for index, group in enumerate(plan.placement.groups):
        split = group.parallel
        node, first = _room(rooms.setdefault(split.device, []), split.num_devices, devices_per_node, index)
        devices = ",".join(str(first + i) for i in range(split.num_devices))
        lines = nodes.setdefault(f"{split.device}-{node}" if split.device else str(node), [])
        lines.append(f"# group {index}")
        for spec in plan.held_by(index):
            words = ["vllm", "serve", spec.path, "--served-model-name", spec.name, "--port", str(port)]
            for flag, value in _engine_flags(spec, group).items():
                words += [flag, value if isinstance(value, str) else json.dumps(value)]
            if split.pipeline > 1 and "--speculative-config" in words:
                lines.append(f"# {PIPELINED}")
            lines.append(f"CUDA_VISIBLE_DEVICES={devices} {shlex.join(words)} &")
            port += 1
    return "\n".join([*_SCRIPT, *_by_node(nodes), "wait", ""])


_SCRIPT = ("#!/bin/sh", "# One engine per model and group. Put a router in front that knows the ports.", "")


def _by_node(nodes: dict[str, list[str]]) -> list[str]:
    """Lines of a script that starts the engines of the node named by its argument, or of the only node."""
    if len(nodes) == 1:
        return [*next(iter(nodes.values())), ""]
    names = ", ".join(nodes)
    lines = [f"# Run it on every node with the node's name: one of {names}.", 'case "$1" in']
    for name, engines in nodes.items():
        lines += [f"{name})", *(f"    {line}" for line in engines), "    ;;"]
    return [*lines, f'*) echo "usage: sh $0 NODE, one of {names}" >&2; exit 2 ;;', "esac", ""]


def _room(nodes: list[int], count: int, devices_per_node: int, index: int) -> tuple[int, int]:
    """(node, first device) of a group: the first node with enough free devices. `nodes`, devices in use, is updated."""
    if count > devices_per_node:
        problem = f"{devices_per_node}, group {index} has {count}"
        raise InvalidParameter("devices_per_node", problem, "raise it, or export for ray-serve")
    node = next((n for n, taken in enumerate(nodes) if taken + count <= devices_per_node), len(nodes))
    if node == len(nodes):
        nodes.append(0)
    nodes[node] += count
    return node, nodes[node] - count


def _engine_flags(spec: ModelSpec, group: Group) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "--tensor-parallel-size": group.parallel.tensor,
        "--pipeline-parallel-size": group.parallel.pipeline,
    }
    if spec.engine.get("dtype") in _DTYPES:
        flags["--dtype"] = spec.engine["dtype"]
    flags |= {flag: spec.engine[option] for option, flag in _SHARED.items() if spec.engine.get(option) is not None}
    if "--kv-cache-memory-bytes" not in flags:
        flags["--gpu-memory-utilization"] = round(MEMORY_SHARE / len(group.models), 3)
    speculation = speculation_of(spec)
    if speculation is not None:
        flags["--speculative-config"] = speculation
    return flags


def _ray_serve(plan: ClusterPlan, image: str, resource: str, devices_per_node: int) -> str:
    """Ray Serve LLM's config: one deployment per model and split, with as many replicas as groups of that split."""
    replicas: dict[tuple[int, Group], int] = {}
    for group in plan.placement.groups:
        for model in group.models:
            key = model, Group(group.parallel, group.models)
            replicas[key] = replicas.get(key, 0) + 1
    kinds = [model for model, _ in replicas]
    configs: list[dict[str, Any]] = []
    for (model, group), count in replicas.items():
        spec = plan.models[model]
        name = spec.name if kinds.count(model) == 1 else f"{spec.name}-{_label(group)}"
        configs.append(_llm_config(spec, name, group, count))
        if group.parallel.device:
            configs[-1]["accelerator_type"] = group.parallel.device.upper()
    application = {"name": "paceline", "route_prefix": "/", "import_path": "ray.serve.llm:build_openai_app"}
    is_risky = any(group.parallel.pipeline > 1 and speculation_of(plan.models[m]) for m, group in replicas)
    text = _yaml({"applications": [application | {"args": {"llm_configs": configs}}]})
    return f"# {PIPELINED}\n{text}" if is_risky else text


def _llm_config(spec: ModelSpec, name: str, group: Group, count: int) -> dict[str, Any]:
    flags = _engine_flags(spec, group)
    bundle = {"GPU": round(1 / len(group.models), 4) if len(group.models) > 1 else 1, "CPU": 1}
    return {
        "model_loading_config": {"model_id": name, "model_source": spec.path},
        "engine_kwargs": {flag[2:].replace("-", "_"): value for flag, value in flags.items()},
        "deployment_config": {"num_replicas": count, "max_ongoing_requests": spec.seats},
        "placement_group_config": {"bundles": [bundle] * group.parallel.num_devices, "strategy": "PACK"},
    }


def _label(group: Group) -> str:
    held = "-".join(map(str, group.models))
    device = f"-{group.parallel.device}" if group.parallel.device else ""
    return f"{group.parallel.tensor}x{group.parallel.pipeline}{device}-with-{held}"


def _kubernetes(plan: ClusterPlan, image: str, resource: str, devices_per_node: int) -> str:
    """For every group a ConfigMap with its part of the plan and a StatefulSet; for every model a Service."""
    parts: list[dict[str, Any]] = []
    for index, group in enumerate(plan.placement.groups):
        name = f"paceline-group-{index}"
        labels = {"app": "paceline", "paceline/group": str(index)}
        labels |= {f"paceline/holds-{model}": "true" for model in group.models}
        data = {"plan.json": json.dumps(part_of(plan, index))}
        parts.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
        parts.append(_stateful_set(name, labels, group, image, resource))
    for model in sorted({m for group in plan.placement.groups for m in group.models}):
        annotations = {"paceline/model": plan.models[model].name}
        metadata = {"name": f"paceline-model-{model}", "annotations": annotations}
        spec = {"selector": {f"paceline/holds-{model}": "true"}, "ports": [{"port": 80, "targetPort": FIRST_PORT}]}
        parts.append({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    return "---\n".join(_yaml(part) for part in parts)


def _serve(plan: str, keys: str, group: Group, resource: str) -> list[str]:
    """Arguments of a container that serves `group`; they state its CPUs, since a CPU limit is not visible inside."""
    on = ["--num-cpus", str(group.parallel.num_devices)] if resource == "cpu" else ["--device", "cuda"]
    return ["serve", "--cluster", plan, "--host", "0.0.0.0", "--api-key-file", keys, *on]


def _stateful_set(name: str, labels: dict[str, str], group: Group, image: str, resource: str) -> dict[str, Any]:
    need = {resource: str(group.parallel.num_devices)}
    ready = {"httpGet": {"path": "/ready", "port": FIRST_PORT}, "periodSeconds": 5}
    alive = {"httpGet": {"path": "/health", "port": FIRST_PORT}, "periodSeconds": 10, "failureThreshold": 6}
    container = {
        "name": "paceline",
        "image": image,
        "args": _serve("/plan/plan.json", "/keys/keys", group, resource),
        "ports": [{"containerPort": FIRST_PORT}],
        "resources": {"limits": need, "requests": need},
        "startupProbe": ready | {"failureThreshold": 180},
        "readinessProbe": ready,
        "livenessProbe": alive,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "plan", "mountPath": "/plan"},
            {"name": "keys", "mountPath": "/keys"},
            {"name": "cache", "mountPath": "/cache"},
        ],
    }
    volumes = [
        {"name": "plan", "configMap": {"name": name}},
        {"name": "keys", "secret": {"secretName": "paceline-keys"}},
        {"name": "cache", "emptyDir": {}},
    ]
    pod = {"terminationGracePeriodSeconds": 60, "containers": [container], "volumes": volumes}
    if group.parallel.device:
        pod["nodeSelector"] = {"paceline/device": group.parallel.device}
    spec = {
        "serviceName": name,
        "replicas": 1,
        "selector": {"matchLabels": {"paceline/group": labels["paceline/group"]}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _compose(plan: ClusterPlan, image: str, resource: str, devices_per_node: int) -> str:
    """A Compose service per group, with its part of the plan and its own devices, all on one machine."""
    if typed := next((group.parallel.device for group in plan.placement.groups if group.parallel.device), ""):
        problem = f"of type {typed!r} are planned for, those of one machine are alike"
        raise InvalidParameter("devices", problem, "export for kubernetes or ray-serve")
    services, configs, first = {}, {}, 0
    for index, group in enumerate(plan.placement.groups):
        name, count = f"group-{index}", group.parallel.num_devices
        configs[name] = {"content": json.dumps(part_of(plan, index)).replace("$", "$$")}
        service: dict[str, Any] = {
            "image": image,
            "command": _serve("/plan.json", "/run/secrets/keys", group, resource),
            "ports": [f"127.0.0.1:{FIRST_PORT + index}:{FIRST_PORT}"],
            "configs": [{"source": name, "target": "/plan.json"}],
            "secrets": ["keys"],
            "volumes": ["cache:/cache"],
            "restart": "unless-stopped",
            "stop_grace_period": "60s",
        }
        if resource != "cpu":
            ids = [str(first + i) for i in range(count)]
            device = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
            service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        else:
            service["cpus"] = count
        services[name], first = service, first + count
    secrets = {"keys": {"file": "./keys.txt"}}
    return _yaml({"services": services, "configs": configs, "secrets": secrets, "volumes": {"cache": {}}})


def part_of(plan: ClusterPlan, index: int) -> dict[str, Any]:
    """The content of a plan file with only one group, its models numbered from 0."""
    group = plan.placement.groups[index]
    held = plan.held_by(index)
    values: dict[str, Any] = {
        "groups": [[group.parallel.tensor, group.parallel.pipeline, list(range(len(held)))]],
        "models": [_model(spec) for spec in held],
        "overhead": plan.overhead,
    }
    if plan.pass_profiles is not None and None not in plan.pass_profiles[index]:
        values["pass_profiles"] = [[profile.record() for profile in plan.pass_profiles[index] if profile is not None]]
    elif plan.stage_seconds is not None:
        values["stage_seconds"] = [[list(stages) for stages in plan.stage_seconds[index]]]
    return values


def _model(spec: ModelSpec) -> dict[str, Any]:
    slos = {name: getattr(spec, name) for name in ("slo", "slo_first", "slo_token")}
    given = {name: seconds for name, seconds in slos.items() if seconds < float("inf")}
    if spec.engine:
        given["engine"] = dict(spec.engine)
    if spec.num_tokens is not None:
        given["num_tokens"] = spec.num_tokens
    if spec.prompt_tokens is not None:
        given["prompt_tokens"] = spec.prompt_tokens
    if spec.speculative is not None:
        given["speculative"] = spec.speculative
    return {"name": spec.name, "path": spec.path, **given}


def _yaml(values: Any) -> str:
    return yaml.dump(values, Dumper=_Plain, sort_keys=False, default_flow_style=False, width=1000)


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


TARGETS: dict[str, Callable[[ClusterPlan, str, str, int], str]] = {
    "vllm": _vllm,
    "ray-serve": _ray_serve,
    "kubernetes": _kubernetes,
    "compose": _compose,
}
