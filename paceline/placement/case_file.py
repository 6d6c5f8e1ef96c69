"""Case files: JSON, or YAML for those written by hand.

A case file has ``num_devices``, ``mem_budget`` (bytes per device), ``models`` [{name, type, rate, cv, slo, path}],
``profiles`` {type: [{op, pp, latency [s per stage], weight_mem [bytes per stage]}]}, and either ``arrivals`` (a CSV of
time and model, its path relative to the case file; none may come after ``duration``, where that is given too) or
``duration`` in seconds (and ``seed``), for which arrivals are drawn at models' rates. A model without ``slo`` has no
deadline; ``weight`` and ``floor`` are priorities of models. A profile entry may have ``batch_latency`` {batch
size: [s per stage]}; requests are then planned in batches of the profiled sizes, or of ``batch_sizes`` among them.
``overhead`` and ``stage_overhead`` are what serving adds (`ControllerRules`). A model may have ``draft`` {type,
output_tokens, acceptance_rate, num_draft_tokens, verify_ratio, hand_over}; its own profile then holds seconds of one
pass, the drafter's of one draft token.

For requests that are generated token by token, profile entries have ``tokens`` (`TokenProfile`) and ``kv_bytes`` [bytes
per token and device] in place of ``latency``, models ``prompt_tokens``, ``output_tokens`` (means), ``length_cv``,
``slo_first`` and ``slo_token`` [s], and ``arrivals`` may have two more columns, numbers of tokens of prompt and answer.

With several nodes of ``num_devices_per_node`` devices, only splits whose tensor degree divides that are used, so that
the ranks of a layer are on one node. Unknown keys are refused. ``name`` names the case. Metadata of data sets may be
there too: ``n_requests`` and ``arrivals_sha256`` are compared with the file of arrivals, and refused where these are
drawn; ``note`` and ``policies`` are ignored.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.config import SpeculativeConfig
from paceline.errors import InvalidParameter
from paceline.placement.arrivals import draw_for_models
from paceline.placement.case import Case
from paceline.placement.cluster import Cluster, DeviceType
from paceline.placement.drafting import Drafting
from paceline.placement.fields import (
    field_of,
    number_of,
    numbers_of,
    only_known,
    read_mapping,
    shown,
    text_of,
    whole_of,
)
from paceline.placement.model import NO_SLO, PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.rules import OVERHEAD, STAGE_OVERHEAD, ControllerRules
from paceline.placement.tokens import TokenProfile
from paceline.placement.traces import read_arrivals
from paceline.placement.workload import MAX_SECONDS, Workload

_CASE_KEYS = (
    "name", "num_devices", "mem_budget", "models", "profiles", "arrivals", "duration", "seed",
    "note", "policies", "num_devices_per_node", "n_requests", "arrivals_sha256", "devices",
    "overhead", "stage_overhead", "batch_sizes",
)  # fmt: skip
_MODEL_KEYS = (
    "name", "type", "rate", "cv", "slo", "path", "draft", "prompt_tokens", "output_tokens", "length_cv", "slo_first",
    "slo_token", "weight", "floor", "speculative",
)  # fmt: skip
_PROFILE_KEYS = ("op", "pp", "latency", "weight_mem", "batch_latency", "tokens", "kv_bytes", "device")
_DEVICE_KEYS = ("type", "count", "mem_budget", "per_node", "price")
_ALIKE_KEYS = ("num_devices", "mem_budget", "num_devices_per_node")

MOST_BYTES = 1e18
"""Largest memory of a device, and size of a stage's weights."""


def read_case(path: str | Path) -> Case:
    """The case in a JSON or YAML file.

    Raises:
        InvalidParameter: the file or a field cannot be read; the message names it.
    """
    path = Path(path)
    return case_from(read_mapping(path), path.parent, path.stem)


def case_from(values: dict[str, Any], folder: Path, name: str) -> Case:
    """The case that the fields of a case file describe.

    Args:
        values: the fields.
        folder: what `arrivals` is relative to.
        name: of the case, if the fields give none.
    """
    only_known(values, _CASE_KEYS, "case")
    models = tuple(_read_model(i, model) for i, model in enumerate(field_of(values, "models", list)))
    profiles = {str(name): _read_profile(name, rows) for name, rows in field_of(values, "profiles", dict).items()}
    return Case(
        name=text_of(values, "name", name),
        cluster=_read_cluster(values, profiles),
        models=models,
        profiles=profiles,
        workload=_read_workload(values, models, folder),
        drafts={i: _read_draft(i, m) for i, m in enumerate(values["models"]) if m.get("draft") is not None},
        rules=_read_rules(values, profiles),
    )


def _read_rules(values: dict[str, Any], profiles: Mapping[str, ModelProfile]) -> ControllerRules:
    sizes = None
    if values.get("batch_sizes") is not None:
        given = numbers_of(values, "batch_sizes", "")
        sizes = tuple(int(size) for size in given)
        if sizes != given:
            raise InvalidParameter("batch_sizes", f"{shown(list(given))}", "give whole numbers")
        profiled = {1, *(size for profile in profiles.values() for size in profile.batch_sizes)}
        unknown = sorted(set(sizes) - profiled)
        if unknown and not any(profile.is_generated for profile in profiles.values()):  # for those see `Case`
            known = ", ".join(map(str, sorted(profiled)))
            problem = f"no model was profiled in batches of {unknown[0]}"
            raise InvalidParameter("batch_sizes", problem, f"use some of {known}, or add it to batch_latency")
    return ControllerRules(
        overhead=number_of(values, "overhead", OVERHEAD, most=MAX_SECONDS),
        stage_overhead=number_of(values, "stage_overhead", STAGE_OVERHEAD),
        batch_sizes=sizes,
    )


def _read_cluster(values: dict[str, Any], profiles: Mapping[str, ModelProfile]) -> Cluster:
    named = {split.device for profile in profiles.values() for split in profile.entries if split.device}
    if "devices" not in values:
        if named:
            problem = f"profiles name {sorted(named)[0]!r}, but all devices are alike"
            raise InvalidParameter("device", problem, "leave it out, or give the types in devices")
        node_devices = None if values.get("num_devices_per_node") is None else whole_of(values, "num_devices_per_node")
        budget = number_of(values, "mem_budget", most=MOST_BYTES)
        return Cluster(whole_of(values, "num_devices"), budget, node_devices)
    for key in _ALIKE_KEYS:
        if values.get(key) is not None:
            raise InvalidParameter(key, "is given beside devices", "say it of each type there")
    cluster = Cluster.of_types(_read_device(i, each) for i, each in enumerate(field_of(values, "devices", list)))
    known = {device.name for device in cluster.types}
    if unknown := sorted(named - known):
        raise InvalidParameter("device", f"profiles name {unknown[0]!r}", f"use one of {', '.join(sorted(known))}")
    if any(not split.device for profile in profiles.values() for split in profile.entries):
        raise InvalidParameter("device", "an entry of profiles names none", "say which type it was profiled on")
    return cluster


def _read_device(index: int, values: Any) -> DeviceType:
    where = f"devices[{index}]"
    if not isinstance(values, dict):
        raise InvalidParameter(where, f"{shown(values)} is no mapping", "give type, count, mem_budget")
    only_known(values, _DEVICE_KEYS, where)
    return DeviceType(
        name=text_of(values, "type", where=where),
        num_devices=whole_of(values, "count", where=where),
        mem_budget=number_of(values, "mem_budget", where=where, most=MOST_BYTES),
        node_devices=None if values.get("per_node") is None else whole_of(values, "per_node", where=where),
        price=number_of(values, "price", 0.0, where),
    )


def _read_workload(values: dict[str, Any], models: tuple[PlacedModel, ...], folder: Path) -> Workload:
    if not models:
        raise InvalidParameter("models", "the list is empty", "name at least one model")
    if "arrivals" in values:
        names = [model.name for model in models]
        path = folder / text_of(values, "arrivals")
        workload = read_arrivals(path, names)
        _check_described(values, path, workload)
    else:
        if "duration" not in values:
            raise InvalidParameter("arrivals", "missing", "give a CSV, or a duration in seconds to draw arrivals for")
        duration = number_of(values, "duration", most=MAX_SECONDS)
        for name in ("n_requests", "arrivals_sha256"):
            if values.get(name) is not None:
                raise InvalidParameter(name, "is of a file of arrivals, but these are drawn", "leave it out")
        workload = draw_for_models(models, duration, seed=_seed(values))
    if workload.num_requests == 0:
        raise InvalidParameter("arrivals", "there are none", "give requests, or positive rates and a longer duration")
    return workload


def _seed(values: dict[str, Any]) -> int:
    seed = whole_of(values, "seed", 0)
    if seed < 0:
        raise InvalidParameter("seed", f"{seed}", "give 0 or more")
    return seed


def _check_described(values: dict[str, Any], path: Path, workload: Workload) -> None:
    """Raise InvalidParameter if the arrivals contradict ``n_requests``, ``duration`` or ``arrivals_sha256``."""
    if "n_requests" in values and whole_of(values, "n_requests") != workload.num_requests:
        problem = f"{path} has {workload.num_requests} requests, n_requests says {values['n_requests']}"
        raise InvalidParameter("arrivals", problem, "bring the whole file, or leave n_requests out")
    if "duration" in values and workload.duration > number_of(values, "duration", most=MAX_SECONDS):
        problem = f"{path} goes on until {workload.duration:g} s, duration says {values['duration']} s"
        raise InvalidParameter("duration", problem, "leave it out, or cut the file: all arrivals are used")
    wanted = values.get("arrivals_sha256")
    if wanted is not None and hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
        raise InvalidParameter("arrivals", f"{path} does not have arrivals_sha256", "bring the file, or leave it out")


def _read_model(index: int, values: Any) -> PlacedModel:
    where = f"models[{index}]"
    if not isinstance(values, dict):
        raise InvalidParameter(where, f"{shown(values)} is no mapping", "give name, type, rate, cv, slo")
    only_known(values, _MODEL_KEYS, where)
    slo = values.get("slo")
    generated = ("prompt_tokens", "output_tokens", "length_cv", "slo_first", "slo_token", "weight", "floor")
    return PlacedModel(
        **{key: number_of(values, key, where=where) for key in generated if values.get(key) is not None},
        name=text_of(values, "name", f"m{index}", where),
        profile_type=text_of(values, "type", where=where),
        rate=number_of(values, "rate", 0.0, where),
        cv=number_of(values, "cv", 1.0, where),
        slo=NO_SLO if slo is None else number_of(values, "slo", where=where),
        path=field_of(values, "path", str, where) if "path" in values else None,
        speculative=_read_speculative(values.get("speculative")),
    )


def _read_speculative(value: Any) -> str | dict[str, Any] | None:
    SpeculativeConfig.of(value)
    return value


def _read_draft(index: int, model: dict[str, Any]) -> Drafting:
    where = f"models[{index}].draft"
    values = field_of(model, "draft", dict, f"models[{index}]")
    known = ("type", "output_tokens", "acceptance_rate", "num_draft_tokens", "verify_ratio", "hand_over")
    only_known(values, (*known, "path"), where)
    numbers = [name for name in known[1:] if name in values or name in known[:3]]
    given: dict[str, Any] = {name: number_of(values, name, where=where) for name in numbers}
    if "num_draft_tokens" in given:
        given["num_draft_tokens"] = whole_of(values, "num_draft_tokens", where=where)
    if "path" in values:
        given["path"] = text_of(values, "path", where=where)
    return Drafting(profile_type=text_of(values, "type", where=where), **given)


def _read_profile(name: str, rows: Any) -> ModelProfile:
    where = f"profiles.{name}"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidParameter(where, "is no list of entries", "give [{op, pp, latency, weight_mem}, ...]")
    entries = [_read_entry(row, where) for row in rows]
    if len({parallel for parallel, _ in entries}) < len(entries):
        raise InvalidParameter(where, "a split (op, pp) is given twice", "give one entry for each")
    return ModelProfile(str(name), dict(entries))


def _read_entry(row: dict[str, Any], where: str) -> tuple[ParallelConfig, Stages]:
    only_known(row, _PROFILE_KEYS, where)
    device = "" if row.get("device") is None else text_of(row, "device", where=where)
    parallel = ParallelConfig(whole_of(row, "op", 1, where), whole_of(row, "pp", 1, where), device)
    try:
        return parallel, _read_stages(row, parallel, where)
    except InvalidParameter as refused:
        field = refused.field if refused.field.startswith(where) else f"{where}.{refused.field}"
        raise InvalidParameter(field, f"{refused.problem} at {parallel}", refused.remedy) from None


def _read_stages(row: dict[str, Any], parallel: ParallelConfig, where: str) -> Stages:
    memory = numbers_of(row, "weight_mem", where, most=MOST_BYTES)
    if "tokens" in row:
        if "latency" in row or "batch_latency" in row:
            raise InvalidParameter(where, "has tokens and latency", "give tokens, or seconds of one pass")
        tokens, kv_bytes = (
            TokenProfile.read(row["tokens"], f"{where}.tokens", parallel.pipeline),
            number_of(row, "kv_bytes", 0.0, where),
        )
        each = tokens.pass_seconds(1) / max(1, len(memory))
        return Stages((each,) * len(memory), memory, tokens=tokens, kv_bytes=kv_bytes)
    latency = numbers_of(row, "latency", where, most=MAX_SECONDS)
    return Stages(latency, memory, _read_batches(row, where))


def _read_batches(row: dict[str, Any], where: str) -> dict[int, tuple[float, ...]]:
    batches = field_of(row, "batch_latency", dict, where) if "batch_latency" in row else {}
    label = f"{where}.batch_latency"
    try:
        sizes = [int(str(size)) for size in batches]
    except ValueError:
        raise InvalidParameter(label, f"sizes {shown(list(batches))}", "use whole numbers as keys") from None
    if len(set(sizes)) < len(sizes) or min(sizes, default=2) < 2:
        raise InvalidParameter(label, f"sizes {shown(list(batches))}", "give each size above 1 once")
    return {size: numbers_of(batches, key, label, MAX_SECONDS) for size, key in zip(sizes, batches, strict=True)}
