"""Case files: JSON, or YAML for those written by hand.

A case file has ``num_devices``, ``mem_budget`` (bytes per device), ``models`` [{name, type, rate, cv, slo, path}],
``profiles`` {type: [{op, pp, latency [s per stage], weight_mem [bytes per stage]}]}, and either ``arrivals`` (a CSV of
time and model, its path relative to the case file) or ``duration`` in seconds (and ``seed``), for which arrivals are
drawn at the models' rates. A model without ``slo`` has no deadline. A profile entry may have ``batch_latency``
{batch size: [s per stage]}. A model may have ``draft`` {type, output_tokens, acceptance_rate, num_draft_tokens,
verify_ratio, hand_over}; its own profile then holds seconds of one pass, the drafter's of one draft token.
"""

import json
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.arrivals import draw_for_models
from paceline.placement.case import Case
from paceline.placement.cluster import Cluster
from paceline.placement.drafting import Drafting
from paceline.placement.model import NO_SLO, PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.traces import read_arrivals
from paceline.placement.workload import Workload


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
        name: of the case, when the fields give none.
    """
    models = tuple(_read_model(i, model) for i, model in enumerate(_field(values, "models", list)))
    profiles = {name: _read_profile(name, rows) for name, rows in _field(values, "profiles", dict).items()}
    cluster = Cluster(_whole(values, "num_devices"), _number(values, "mem_budget"))
    return Case(
        name=str(values.get("name", name)),
        cluster=cluster,
        models=models,
        profiles=profiles,
        workload=_read_workload(values, models, folder),
        drafts={i: _read_draft(i, m) for i, m in enumerate(values["models"]) if m.get("draft") is not None},
    )


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a JSON or YAML file. Raises InvalidParameter when there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter("case", f"cannot read {path} ({error})", "give a JSON or YAML file") from None
    try:
        values = _parse_yaml(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except ValueError as error:
        raise InvalidParameter("case", f"{path} cannot be parsed ({error})", "mend it, or check its suffix") from None
    if not isinstance(values, dict):
        raise InvalidParameter("case", f"{path} holds no mapping", "write the fields of a case at its top level")
    return values


def _parse_yaml(text: str) -> Any:
    import yaml  # its import takes longer than reading a JSON case

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def _read_workload(values: dict[str, Any], models: tuple[PlacedModel, ...], folder: Path) -> Workload:
    if not models:
        raise InvalidParameter("models", "the list is empty", "name at least one model")
    if "arrivals" in values:
        names = [model.name for model in models]
        workload = read_arrivals(folder / str(values["arrivals"]), names)
    else:
        if "duration" not in values:
            raise InvalidParameter("arrivals", "missing", "give a CSV, or a duration in seconds to draw arrivals for")
        workload = draw_for_models(models, _number(values, "duration"), seed=_whole(values, "seed", 0))
    if workload.num_requests == 0:
        raise InvalidParameter("arrivals", "there are none", "give requests, or positive rates and a longer duration")
    return workload


def _read_model(index: int, values: Any) -> PlacedModel:
    where = f"models[{index}]"
    if not isinstance(values, dict):
        raise InvalidParameter(where, f"{values!r} is no mapping", "give name, type, rate, cv, slo")
    slo = values.get("slo")
    return PlacedModel(
        name=str(values.get("name", f"m{index}")),
        profile_type=str(_field(values, "type", str, where)),
        rate=_number(values, "rate", 0.0, where),
        cv=_number(values, "cv", 1.0, where),
        slo=NO_SLO if slo is None else _number(values, "slo", where=where),
        path=_field(values, "path", str, where) if "path" in values else None,
    )


def _read_draft(index: int, model: dict[str, Any]) -> Drafting:
    where = f"models[{index}].draft"
    values = _field(model, "draft", dict, f"models[{index}]")
    known = ("type", "output_tokens", "acceptance_rate", "num_draft_tokens", "verify_ratio", "hand_over")
    if unknown := sorted(map(str, set(values) - set(known))):
        raise InvalidParameter(where, f"sets {', '.join(unknown)}", f"use {', '.join(known)}")
    given = {name: _number(values, name, where=where) for name in known[1:] if name in values or name in known[:3]}
    if "num_draft_tokens" in given:
        given["num_draft_tokens"] = _whole(values, "num_draft_tokens", where=where)
    return Drafting(profile_type=str(_field(values, "type", str, where)), **given)  # pyright: ignore[reportArgumentType]


def _read_profile(name: str, rows: Any) -> ModelProfile:
    where = f"profiles.{name}"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidParameter(where, "is no list of entries", "give [{op, pp, latency, weight_mem}, ...]")
    return ModelProfile(name, dict(_read_entry(row, where) for row in rows))


def _read_entry(row: dict[str, Any], where: str) -> tuple[ParallelConfig, Stages]:
    parallel = ParallelConfig(_whole(row, "op", 1, where), _whole(row, "pp", 1, where))
    batches = _field(row, "batch_latency", dict, where) if "batch_latency" in row else {}
    try:
        sizes = {int(size): size for size in batches}
    except ValueError:
        problem = f"sizes {list(batches)}"
        raise InvalidParameter(f"{where}.batch_latency", problem, "use whole numbers as keys") from None
    stages = Stages(
        latency=_numbers(row, "latency", where),
        weight_mem=_numbers(row, "weight_mem", where),
        batch_latency={size: _numbers(batches, key, f"{where}.batch_latency") for size, key in sizes.items()},
    )
    return parallel, stages


def _field(values: dict[str, Any], name: str, kind: type, where: str = "") -> Any:
    label = f"{where}.{name}" if where else name
    if not isinstance(values.get(name), kind):
        found = repr(values[name]) if name in values else "missing"
        raise InvalidParameter(label, found, f"give a {kind.__name__}")
    return values[name]


def _number(values: dict[str, Any], name: str, default: float | None = None, where: str = "") -> float:
    value = values.get(name, default)
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        return float(value)  # a string too: YAML reads 2.0e9 as one
    except (TypeError, ValueError):
        label = f"{where}.{name}" if where else name
        problem = repr(value) if name in values else "missing"
        raise InvalidParameter(label, problem, "give a number") from None


def _whole(values: dict[str, Any], name: str, default: int | None = None, where: str = "") -> int:
    value = _number(values, name, default, where)
    if not value.is_integer():
        raise InvalidParameter(f"{where}.{name}" if where else name, f"{value}", "give a whole number")
    return int(value)


def _numbers(values: dict[str, Any], name: str, where: str) -> tuple[float, ...]:
    return tuple(_number({name: value}, name, where=where) for value in _field(values, name, list, where))
