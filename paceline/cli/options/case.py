"""A placement case from the command line: a file, flags on top of it, or flags alone."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.disk import check_file
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.placement import Case

Seed = Annotated[int | None, typer.Option("--seed", help="Of the arrivals that are drawn, instead of the case's.")]


@dataclass(frozen=True, slots=True)
class GivenCase:
    """A case file, flags in place of what it says, or flags alone."""

    case: Annotated[Path | None, typer.Option("--case", help="Case file, JSON or YAML (docs/placement.md).")] = None
    profiles: Annotated[
        Path | None, typer.Option("--profiles", help="JSON or YAML file with profiles, instead of the case's.")
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="'TYPE rate=2 cv=3 slo=0.5 count=4', instead of the case's models; repeatable."),
    ] = None
    num_devices: Annotated[int | None, typer.Option("--num-devices", help="Devices, instead of the case's.")] = None
    mem_budget: Annotated[float | None, typer.Option("--mem-budget", help="Bytes per device for weights.")] = None
    duration: Annotated[float | None, typer.Option("--duration", help="Seconds of arrivals to draw.")] = None
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--batch-sizes",
            metavar="1,2,4",
            help="Requests of a model that may share a pass; 1 for no batches. Default: all profiled sizes.",
        ),
    ] = None
    overhead: Annotated[
        float | None, typer.Option("--overhead", help="Seconds from the last stage to the answer. Default: 0.011.")
    ] = None
    stage_overhead: Annotated[
        float | None,
        typer.Option(
            "--stage-overhead",
            help="A stage takes 1 + this x (number of stages) times its profiled seconds. Default: 0.009.",
        ),
    ] = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given."""
        return all(getattr(self, each.name) in (None, []) for each in fields(GivenCase))

    def load(self, seed: int | None = None) -> "Case":
        """The case; `seed`, if given, replaces the case's seed of drawn arrivals.

        Raises:
            InvalidParameter: nothing was given, and as `case_from`.
        """
        from paceline.placement.case_file import case_from
        from paceline.placement.fields import read_mapping

        if seed is not None:
            check_seed(seed)
        values = {} if self.case is None else read_mapping(self.case)
        if self.profiles is not None:
            given = read_mapping(self.profiles, "profiles")
            values["profiles"] = given.get("profiles", given)
        if self.model:
            values["models"] = [model for text in self.model for model in _models(text)]
        names = ("num_devices", "mem_budget", "duration", "overhead", "stage_overhead")
        replaced: dict[str, Any] = {name: getattr(self, name) for name in names}
        replaced["batch_sizes"] = None if self.batch_sizes is None else _sizes(self.batch_sizes)
        values |= {name: value for name, value in replaced.items() if value is not None}
        if self.duration is not None or self.model:
            for described in ("arrivals", "n_requests", "arrivals_sha256"):
                values.pop(described, None)
        if values and seed is not None:
            values["seed"] = seed
        if not values:
            remedy = "give --case FILE, or --num-devices, --mem-budget, --profiles, --model and --duration"
            raise InvalidParameter("case", "nothing to place", remedy)
        if self.case is None:
            return case_from(values, Path(), "case")
        return case_from(values, self.case.parent, self.case.stem)


@dataclass(frozen=True, slots=True)
class ScaledCase(GivenCase):
    """A `GivenCase` with scaled traffic and deadlines."""

    rate_scale: Annotated[float, typer.Option("--rate-scale", help="The same arrivals, faster by this factor.")] = 1.0
    cv_scale: Annotated[
        float, typer.Option("--cv-scale", help="New arrivals, fitted to the old, burstier by this factor.")
    ] = 1.0
    slo_scale: Annotated[float, typer.Option("--slo-scale", help="Every deadline times this.")] = 1.0

    def load(self, seed: int | None = None) -> "Case":
        """The case. With a new burstiness, arrivals are drawn again from `seed`, by default 0."""
        case = GivenCase.load(self, seed)
        for name in ("rate_scale", "cv_scale", "slo_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidParameter(name, f"{getattr(self, name)} is not above 0", "give a factor above 0")
        if self.cv_scale != 1.0:
            from paceline.placement.arrivals import burstier

            with blamed_on("cv_scale", self.cv_scale):
                case = case.with_workload(burstier(case.workload, self.cv_scale, len(case.models), seed or 0))
        if self.rate_scale != 1.0:
            with blamed_on("rate_scale", self.rate_scale):
                case = case.scale_rate(self.rate_scale)
        with blamed_on("slo_scale", self.slo_scale):
            return case.scale_slo(self.slo_scale)


@contextmanager
def blamed_on(option: str, factor: float) -> Iterator[None]:
    """What a case scaled by `factor` is refused for is `option`'s fault."""
    try:
        yield
    except InvalidParameter as refused:
        problem = f"{factor:g} is refused for {refused.field}, {refused.problem}"
        raise InvalidParameter(option, problem, "give a factor nearer to 1") from None


def check_seed(seed: int) -> int:
    """Return `seed`. Raises InvalidParameter if it is invalid for random generators."""
    if not 0 <= seed < 2**64:
        raise InvalidParameter("seed", f"{seed}", "give 0 or more, of 64 bits")
    return seed


def check_outputs(output: Path | None, plot: Path | None = None, field: str = "plot") -> None:
    """Raise InvalidParameter, before the search, if an output or a plot, the option `field`, cannot be written."""
    from paceline.theory.plots import check_drawable

    if output is not None:
        check_file("output", output)
    if plot is not None:
        check_drawable(plot, field)


def _sizes(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        remedy = "give whole numbers with commas between, e.g. 1,2,4"
        raise InvalidParameter("batch_sizes", repr(text), remedy) from None


def _models(text: str) -> list[dict[str, Any]]:
    """The models of one --model: a type, then name=value words; count=N makes N of them."""
    kind, *words = text.split() or [""]
    pairs = [_word(word) for word in words]
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name in fields if sum(name == each for each, _ in pairs) > 1)
        raise InvalidParameter("model", f"{text!r} sets {twice} twice", "give it once")
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
