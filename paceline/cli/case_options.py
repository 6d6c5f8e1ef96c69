"""A placement case from the command line: a file, flags on top of it, or flags alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.disk import check_file
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.placement import Case

CaseFile = Annotated[Path | None, typer.Option("--case", help="Case file, JSON or YAML (docs/placement.md).")]
Profiles = Annotated[
    Path | None, typer.Option("--profiles", help="JSON or YAML file with profiles, instead of the case's.")
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="'TYPE rate=2 cv=3 slo=0.5 count=4', instead of the case's models; repeatable."),
]
NumDevices = Annotated[int | None, typer.Option("--num-devices", help="Devices, instead of the case's.")]
MemBudget = Annotated[float | None, typer.Option("--mem-budget", help="Bytes per device for weights.")]
Duration = Annotated[float | None, typer.Option("--duration", help="Seconds of arrivals to draw.")]
RateScale = Annotated[float, typer.Option("--rate-scale", help="The same arrivals, faster by this factor.")]
CvScale = Annotated[float, typer.Option("--cv-scale", help="New arrivals, fitted to the old, burstier by this factor.")]
SloScale = Annotated[float, typer.Option("--slo-scale", help="Every deadline times this.")]

FIT_WINDOW = 60.0
"""Seconds in which a trace's rates and burstiness are taken as constant."""


def load_case(
    file: Path | None,
    profiles: Path | None = None,
    models: list[str] | None = None,
    num_devices: int | None = None,
    mem_budget: float | None = None,
    duration: float | None = None,
    seed: int = 0,
) -> "Case":
    """The case in `file` with whatever else is given in place of its own; without a file everything must be given."""
    from paceline.placement.case_file import case_from
    from paceline.placement.fields import read_mapping

    check_seed(seed)
    values = {} if file is None else read_mapping(file)
    if profiles is not None:
        given = read_mapping(profiles, "profiles")
        values["profiles"] = given.get("profiles", given)
    if models:
        values["models"] = [model for text in models for model in _models(text)]
    replaced = {"num_devices": num_devices, "mem_budget": mem_budget, "duration": duration}
    values |= {name: value for name, value in replaced.items() if value is not None}
    if duration is not None or models:
        for described in ("arrivals", "n_requests", "arrivals_sha256"):
            values.pop(described, None)
        values.setdefault("seed", seed)
    if not values:
        remedy = "give --case FILE, or --num-devices, --mem-budget, --profiles, --model and --duration"
        raise InvalidParameter("case", "nothing to place", remedy)
    return case_from(values, Path() if file is None else file.parent, "case" if file is None else file.stem)


def check_seed(seed: int) -> None:
    """Raise InvalidParameter for a seed that generators refuse."""
    if seed < 0:
        raise InvalidParameter("seed", f"{seed}", "give 0 or more")


def check_outputs(output: Path | None, plot: Path | None = None) -> None:
    """Raise InvalidParameter where nothing could be written, before anything is searched."""
    from paceline.theory.plots import check_drawable

    if output is not None:
        check_file("output", output)
    if plot is not None:
        check_drawable(plot)


def scaled(case: "Case", rate: float = 1.0, cv: float = 1.0, slo: float = 1.0, seed: int = 0) -> "Case":
    """`case` with its traffic and deadlines scaled. Another burstiness means other arrivals, drawn from `seed`."""
    for name, factor in (("rate_scale", rate), ("cv_scale", cv), ("slo_scale", slo)):
        if not 0 < factor < float("inf"):
            raise InvalidParameter(name, f"{factor} is not above 0", "give a factor above 0")
    if cv != 1.0:
        import numpy as np

        from paceline.placement.arrivals import fit

        fitted = fit(case.workload, FIT_WINDOW, len(case.models))
        case = case.with_workload(fitted.resample(np.random.default_rng(seed), cv_scale=cv))
    return (case if rate == 1.0 else case.scale_rate(rate)).scale_slo(slo)


def _models(text: str) -> list[dict[str, Any]]:
    """The models of one --model: a type, then name=value words; count=N makes N of them."""
    kind, *words = text.split() or [""]
    fields = dict(_word(word) for word in words)
    unknown = sorted(set(fields) - {"rate", "cv", "slo", "count", "name"})
    if unknown or not kind or "=" in kind:
        problem = f"{text!r}" + (f" sets {', '.join(unknown)}" if unknown else " does not begin with a type")
        raise InvalidParameter("model", problem, "write 'TYPE rate=2 cv=3 slo=0.5 count=4'")
    count, name = fields.pop("count", 1), str(fields.pop("name", kind))
    if not isinstance(count, int) or count < 1:
        raise InvalidParameter("model", f"count={count} in {text!r}", "give a whole number of at least 1")
    names = [name] if count == 1 else [f"{name}-{i}" for i in range(count)]
    return [{"name": each, "type": kind, **fields} for each in names]


def _word(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
