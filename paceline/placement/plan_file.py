"""Reading plan files of `paceline place --output`: their keys, and the check that one fits a case.

Not for starting a plan (`serving/cluster/plan.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.fields import field_of, only_known, read_mapping
from paceline.placement.model import PlacedModel
from paceline.placement.placement import Placement

PLAN_KEYS = (
    "case", "policy", "groups", "models", "serving", "stage_seconds", "pass_profiles", "overhead", "drafts",
    "num_devices", "mem_budget", "slo_attainment", "mean_latency_served", "p99_latency_served", "model_attainment",
    "planning_seconds", "finished", "unplaceable", "history", "windows", "sample", "drafts_tried", "explanation",
    "note", "held_out", "confidence", "cost_per_hour", "attainment_by_devices", "pools",
    "batch_sizes",
)  # fmt: skip


def read_placement(path: Path, models: Sequence[PlacedModel]) -> tuple[Placement, Mapping[str, Any]]:
    """(placement of a plan file, name of a target to the place of its drafter).

    Args:
        models: of the case.

    Raises:
        InvalidParameter: it cannot be read, was made for other models, or has several placements (windows).
    """
    values = read_mapping(path, "plan")
    only_known(values, PLAN_KEYS, "plan")
    if not isinstance(values.get("groups"), list):
        raise InvalidParameter("plan", f"{path} has no list of groups", "give a file of paceline place --output")
    if values.get("windows"):
        problem = f"{values.get('policy', 'it')} has a placement for each window"
        raise InvalidParameter("plan", problem, "simulate the plan of another policy")
    _check_models(values, models)
    places = field_of(values, "drafts", dict) if values.get("drafts") is not None else {}
    names = {model.name for model in models}
    if unknown := [name for name in places if name not in names]:
        raise InvalidParameter("plan", f"places the drafter of {unknown[0]!r}", "simulate the case that was planned")
    return Placement.from_lists(values["groups"]), places


def _check_models(values: Mapping[str, Any], models: Sequence[PlacedModel]) -> None:
    """Raise InvalidParameter unless the plan was made for the same list of models, since it refers to indices."""
    planned = values.get("models")
    if planned is None:
        return
    names = [
        model.get("name") if isinstance(model, dict) else model for model in field_of(dict(values), "models", list)
    ]
    wanted = [model.name for model in models]
    if names != wanted:
        differ = next((i for i, (a, b) in enumerate(zip(names, wanted, strict=False)) if a != b), None)
        where = f"{len(names)} models, not {len(wanted)}" if differ is None else f"model {differ} is {names[differ]!r}"
        raise InvalidParameter("plan", f"made for other models ({where})", "simulate the case that was planned")
