"""`Case`: all a planner needs to know, and its files (JSON, or YAML for those written by hand).

A case file has ``num_devices``, ``mem_budget`` (bytes per device), ``models`` [{name, type, rate, cv, slo}],
``profiles`` {type: [{op, pp, latency [s per stage], weight_mem [bytes per stage]}]}, and either ``arrivals`` (a CSV of
time and model index, its path relative to the case file) or ``duration`` in seconds (and ``seed``), for which arrivals
are drawn at the models' rates. A model without ``slo`` has no deadline.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.arrivals import draw_for_models
from paceline.placement.cluster import Cluster
from paceline.placement.model import NO_SLO, PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.traces import read_arrivals
from paceline.placement.workload import Workload


@dataclass(frozen=True)
class Case:
    """A cluster, its models, what they cost, and the requests that come.

    Raises:
        InvalidParameter: no models, equal names, a type without a profile, or an arrival for a model that is not there.
    """

    name: str
    cluster: Cluster
    models: tuple[PlacedModel, ...]
    profiles: Mapping[str, ModelProfile]
    workload: Workload

    def __post_init__(self) -> None:
        if not self.models:
            raise InvalidParameter("models", "the list is empty", "name at least one model")
        names = [model.name for model in self.models]
        for model in self.models:
            if names.count(model.name) > 1:
                raise InvalidParameter("models", f"two are called {model.name!r}", "give each its own name")
            if model.profile_type not in self.profiles:
                problem = f"no profile for type {model.profile_type!r} of model {model.name!r}"
                raise InvalidParameter("profiles", problem, f"profile it, or use one of {sorted(self.profiles)}")
        if self.workload.num_models > len(self.models):
            problem = f"model index {self.workload.num_models - 1}, there are {len(self.models)} models"
            raise InvalidParameter("arrivals", problem, f"use indices 0 to {len(self.models) - 1}")

    @property
    def has_slo(self) -> bool:
        """Some model has a deadline; otherwise placements are compared by mean latency."""
        return any(model.has_slo for model in self.models)

    def with_workload(self, workload: Workload) -> "Case":
        """The same case with other arrivals."""
        return replace(self, workload=workload)

    def scale_slo(self, factor: float) -> "Case":
        """Every deadline times `factor`; models without one keep none."""
        models = [replace(m, slo=m.slo * factor) if m.has_slo else m for m in self.models]
        return replace(self, models=tuple(models))

    def scale_rate(self, factor: float) -> "Case":
        """The same arrivals `factor` times as fast."""
        models = tuple(replace(model, rate=model.rate * factor) for model in self.models)
        return replace(self, models=models, workload=self.workload.scale_rate(factor))

    def with_devices(self, num_devices: int) -> "Case":
        """The same case on a cluster of another size."""
        return replace(self, cluster=replace(self.cluster, num_devices=num_devices))

    def profile_of(self, model: int) -> ModelProfile:
        return self.profiles[self.models[model].profile_type]


def read_case(path: str | Path) -> Case:
    """The case in a JSON or YAML file.

    Raises:
        InvalidParameter: the file or a field cannot be read; the message names it.
    """
    path = Path(path)
    values = _read_mapping(path)
    models = tuple(_read_model(i, model) for i, model in enumerate(_field(values, "models", list)))
    profiles = {name: _read_profile(name, rows) for name, rows in _field(values, "profiles", dict).items()}
    cluster = Cluster(int(_number(values, "num_devices")), _number(values, "mem_budget"))
    return Case(
        name=str(values.get("name", path.stem)),
        cluster=cluster,
        models=models,
        profiles=profiles,
        workload=_read_workload(values, models, path.parent),
    )


def _read_mapping(path: Path) -> dict[str, Any]:
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
    if "arrivals" in values:
        names = [model.name for model in models]
        workload = read_arrivals(folder / str(values["arrivals"]), names)
    else:
        if "duration" not in values:
            raise InvalidParameter("arrivals", "missing", "give a CSV, or a duration in seconds to draw arrivals for")
        workload = draw_for_models(models, _number(values, "duration"), seed=int(_number(values, "seed", 0)))
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
    )


def _read_profile(name: str, rows: Any) -> ModelProfile:
    where = f"profiles.{name}"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InvalidParameter(where, "is no list of entries", "give [{op, pp, latency, weight_mem}, ...]")
    return ModelProfile(name, dict(_read_entry(row, where) for row in rows))


def _read_entry(row: dict[str, Any], where: str) -> tuple[ParallelConfig, Stages]:
    parallel = ParallelConfig(int(_number(row, "op", 1, where)), int(_number(row, "pp", 1, where)))
    batches = {int(size): _numbers(times, where) for size, times in row.get("batch_latency", {}).items()}
    latency = _numbers(_field(row, "latency", list, where), where)
    return parallel, Stages(latency, _numbers(_field(row, "weight_mem", list, where), where), batches)


def _field(values: dict[str, Any], name: str, kind: type, where: str = "") -> Any:
    label = f"{where}.{name}" if where else name
    if not isinstance(values.get(name), kind):
        found = repr(values[name]) if name in values else "missing"
        raise InvalidParameter(label, found, f"give a {kind.__name__}")
    return values[name]


def _number(values: dict[str, Any], name: str, default: float | None = None, where: str = "") -> float:
    value = values.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        label = f"{where}.{name}" if where else name
        raise InvalidParameter(label, "missing" if value is None else repr(value), "give a number")
    return value


def _numbers(values: Any, where: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise InvalidParameter(where, f"{values!r} is no list of numbers", "give one number per stage")
    return tuple(map(float, values))
