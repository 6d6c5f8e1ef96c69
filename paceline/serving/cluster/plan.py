"""`ClusterPlan`: a parsed plan file: models, their weights, their parallel degrees, and the groups.

A plan file is written by ``paceline place --output``, or by hand with at least

    {"groups": [[tensor degree, pipeline degree, [model indices]], ...], "models": [...]}

A model is a name, or {"name", "path", "slo", "engine", "num_tokens", "prompt_tokens", "speculative"}: where its
weights are (the name itself when left out), seconds from arrival to answer, options of `EngineConfig`, the tokens of
the answer that was profiled, or of the answers and prompts that are expected, and how its engine drafts.
A group runs as many concurrent requests as its engines allow. It predicts completion times from ``pass_profiles``, the
costs of passes (`TokenProfile`), in the order of ``groups`` and of the models in each; without them engines time some
steps when they start. Alternatively, ``stage_seconds`` holds seconds per stage of single-pass requests (as in the
paper), of which a group then runs as many at once as it has stages.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.config import SpeculativeConfig
from paceline.drafters.registry import check_drafter
from paceline.errors import InvalidParameter, UnknownModel
from paceline.placement import Placement
from paceline.placement.fields import field_of, number_of, only_known, read_mapping, shown, text_of, whole_of
from paceline.placement.model import NO_SLO
from paceline.placement.plan_file import PLAN_KEYS
from paceline.placement.tokens import TokenProfile
from paceline.placement.workload import MAX_SECONDS
from paceline.serving.cluster.controller import Queue
from paceline.serving.cluster.group_queue import GroupQueue
from paceline.serving.cluster.token_queue import TokenQueue
from paceline.serving.models.model_spec import ModelSpec

_MODEL_KEYS = ("name", "path", "slo", "slo_first", "slo_token", "engine", "num_tokens", "prompt_tokens", "speculative")


@dataclass(frozen=True)
class ClusterPlan:
    """Groups and the models they hold.

    Attributes:
        models: all models of the plan; groups refer to them by index.
        placement: the groups.
        stage_seconds: [groups] [models of the group] seconds per stage; None where they are not known.
        overhead: seconds between a request's last stage and its answer.
        pass_profiles: [groups] [models of the group], what passes cost where requests are generated token by
            token; None where it is not known.

    Raises:
        InvalidParameter: no groups, or one without models; equal names, an index without a model, or stage times that
            do not fit the groups.
    """

    models: tuple[ModelSpec, ...]
    placement: Placement
    stage_seconds: tuple[tuple[tuple[float, ...], ...], ...] | None = None
    overhead: float = 0.0
    pass_profiles: tuple[tuple[TokenProfile | None, ...], ...] | None = None

    def __post_init__(self) -> None:
        names = Counter(model.name for model in self.models)
        if not self.placement.groups:
            raise InvalidParameter("groups", "the list is empty", "plan at least one group")
        for name in names:
            if names[name] > 1:
                raise InvalidParameter("models", f"two are called {name!r}", "give each its own name")
        for index, group in enumerate(self.placement.groups):
            for model in group.models:
                if not 0 <= model < len(self.models):
                    problem = f"group {index} holds model {model}, there are {len(self.models)}"
                    raise InvalidParameter("groups", problem, f"use indices 0 to {len(self.models) - 1}")
            if not group.models:
                raise InvalidParameter("groups", f"group {index} holds no model", "name its models, or leave it out")
        if self.stage_seconds is not None:
            self._check_stage_seconds()
        if self.pass_profiles is not None:
            self._check_pass_profiles()
        if not 0 <= self.overhead < float("inf"):
            raise InvalidParameter("overhead", f"{self.overhead} s", "give 0 or more")

    def model(self, name: str) -> ModelSpec:
        """The model called `name`. Raises InvalidParameter, which lists the known names, for an unknown one."""
        for spec in self.models:
            if spec.name == name:
                return spec
        known = ", ".join(spec.name for spec in self.models)
        raise UnknownModel("model", f"{name!r} is unknown", f"use one of {known}")

    @property
    def held(self) -> tuple[ModelSpec, ...]:
        """Models that some group holds; a planner may leave out models that do not fit."""
        return tuple(self.models[index] for index in sorted({m for g in self.placement.groups for m in g.models}))

    @property
    def num_seats(self) -> int:
        """Number of requests that all groups together run at once."""
        groups = range(len(self.placement.groups))
        return sum(spec.seats for group in groups for spec in self.held_by(group))

    def held_by(self, group: int) -> tuple[ModelSpec, ...]:
        """Models of a group."""
        return tuple(self.models[model] for model in self.placement.groups[group].models)

    def queues(self) -> list[Queue]:
        """New queues of all groups, with their known service times.

        Plans with seconds per stage get queues for single-pass requests; all others run as many requests at once as
        their engines allow.
        """
        return [self._queue(index) for index in range(len(self.placement.groups))]

    def _queue(self, index: int) -> Queue:
        group, names = self.placement.groups[index], [spec.name for spec in self.held_by(index)]
        if self.pass_profiles is None and self.stage_seconds is not None:
            times = dict(zip(names, self.stage_seconds[index], strict=True))
            return GroupQueue(times, group.parallel.pipeline, self.overhead)
        known = self.pass_profiles[index] if self.pass_profiles else [None] * len(names)
        seats = {spec.name: spec.seats for spec in self.held_by(index)}
        return TokenQueue(dict(zip(names, known, strict=True)), self.overhead, seats)

    def _check_pass_profiles(self) -> None:
        assert self.pass_profiles is not None
        wanted = [len(group.models) for group in self.placement.groups]
        if [len(profiles) for profiles in self.pass_profiles] != wanted:
            raise InvalidParameter("pass_profiles", "do not fit the groups", "give one for each model a group holds")

    def with_paths(self, paths: Mapping[str, str]) -> "ClusterPlan":
        """The plan with other weights, by model name."""
        for name in paths:
            self.model(name)
        return replace(self, models=tuple(replace(m, path=paths.get(m.name, m.path)) for m in self.models))

    def with_engine(self, options: Mapping[str, Any]) -> "ClusterPlan":
        """The plan with `options` of `EngineConfig` as defaults; options in the plan take precedence."""
        return replace(self, models=tuple(replace(m, engine={**options, **m.engine}) for m in self.models))

    def _check_stage_seconds(self) -> None:
        assert self.stage_seconds is not None
        groups = self.placement.groups
        if len(self.stage_seconds) != len(groups):
            problem = f"{len(self.stage_seconds)} entries for {len(groups)} groups"
            raise InvalidParameter("stage_seconds", problem, "give one per group, or leave it out")
        for index, (group, times) in enumerate(zip(groups, self.stage_seconds, strict=True)):
            if len(times) != len(group.models) or any(len(stages) != group.parallel.pipeline for stages in times):
                problem = f"does not fit its {len(group.models)} models of {group.parallel.pipeline} stages"
                raise InvalidParameter(f"stage_seconds[{index}]", problem, "give seconds per stage for each model held")
            if not all(0 < seconds < float("inf") for stages in times for seconds in stages):
                raise InvalidParameter(f"stage_seconds[{index}]", "a time is not above 0", "give seconds")


def read_plan(path: str | Path) -> ClusterPlan:
    """The plan in a JSON file.

    Raises:
        InvalidParameter: the file or a field cannot be used; the message names it.
    """
    return plan_of(read_mapping(Path(path), "cluster"))


def plan_of(values: Mapping[str, Any]) -> ClusterPlan:
    """The plan from the parsed object of a plan file."""
    only_known(values, PLAN_KEYS, "cluster")
    models = values.get("serving") or values.get("models")
    groups = values.get("groups")
    for name, found in (("models", models), ("groups", groups)):
        if not isinstance(found, list) or not found:
            raise InvalidParameter(name, "missing" if not found else shown(found), "give a list, see docs/cluster.md")
    assert models and groups
    drafts = field_of(values, "drafts", dict) if values.get("drafts") is not None else {}
    apart = [name for name, place in drafts.items() if place == "apart"]
    if apart:
        problem = f"the drafter of {apart[0]!r} has a device of its own, which no engine can start"
        raise InvalidParameter("drafts", problem, "plan without that model's draft block")
    batches = values.get("batch_sizes")
    if batches not in (None, [1]):
        problem = f"{shown(batches)} were planned with, but a cluster forms no batches of one-pass requests"
        raise InvalidParameter("batch_sizes", problem, "plan again with --batch-sizes 1")
    times, placement = values.get("stage_seconds"), Placement.from_lists(groups)
    return ClusterPlan(
        models=tuple(_model(index, model) for index, model in enumerate(models)),
        placement=placement,
        stage_seconds=None if times is None else _stage_seconds(times),
        overhead=_seconds("overhead", values.get("overhead"), 0.0),
        pass_profiles=(
            None if values.get("pass_profiles") is None else _pass_profiles(values["pass_profiles"], placement)
        ),
    )


def _model(index: int, value: Any) -> ModelSpec:
    where = f"models[{index}]"
    if isinstance(value, str):
        return ModelSpec(value, value)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise InvalidParameter(where, shown(value), "give a name, or an object with a name")
    only_known(value, _MODEL_KEYS, where)
    given = {key: each for key, each in value.items() if each is not None}
    engine = field_of(given, "engine", dict, where) if "engine" in given else {}
    slo = _seconds(f"{where}.slo", given.get("slo"), float("inf"))
    tokens = {name: whole_of(given, name, where=where) for name in ("num_tokens", "prompt_tokens") if name in given}
    path = text_of(given, "path", value["name"], where)
    rest: dict[str, Any] = {"speculative": given.get("speculative")}
    drafting = SpeculativeConfig.of(rest["speculative"])
    try:
        check_drafter(drafting)
    except InvalidParameter as error:
        raise error.about(f"{where}.speculative") from None
    rest |= {name: _seconds(f"{where}.{name}", given.get(name), float("inf")) for name in ("slo_first", "slo_token")}
    slo = float("inf") if slo >= NO_SLO else slo
    return ModelSpec(text_of(value, "name"), path, slo, engine, **tokens, **rest)


def _seconds(name: str, value: Any, default: float) -> float:
    if value is None:
        return default
    return number_of({name: value}, name, most=MAX_SECONDS)


def _pass_profiles(values: Any, placement: Placement) -> tuple[tuple[TokenProfile, ...], ...]:
    """Parse the pass profiles; the default number of stages is that of the group."""
    if not isinstance(values, list) or not all(isinstance(group, list) for group in values):
        raise InvalidParameter("pass_profiles", f"{shown(values)} is no list of lists", "give [groups][models]")
    if len(values) != len(placement.groups):
        problem = f"{len(values)} entries for {len(placement.groups)} groups"
        raise InvalidParameter("pass_profiles", problem, "give one per group, or leave it out")
    return tuple(
        tuple(
            TokenProfile.read(value, f"pass_profiles[{g}][{m}]", group.parallel.pipeline)
            for m, value in enumerate(held)
        )
        for g, (held, group) in enumerate(zip(values, placement.groups, strict=True))
    )


def _stage_seconds(values: Any) -> tuple[tuple[tuple[float, ...], ...], ...]:
    def listed(value: Any) -> list[Any]:
        if not isinstance(value, list):
            remedy = "give [groups][models of the group][stages] seconds"
            raise InvalidParameter("stage_seconds", f"{shown(value)} is no list", remedy)
        return value

    return tuple(
        tuple(tuple(_seconds("stage_seconds", each, 0.0) for each in listed(stages)) for stages in listed(models))
        for models in listed(values)
    )
