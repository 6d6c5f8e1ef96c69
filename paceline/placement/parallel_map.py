"""When model parallelism pays: its attainment against selective replication's, over two of memory, rate, CV and SLO.

For each cell, both sides are searched: groups of several devices only, and groups of a single device only (Li et al.
2023, AlpaServe, section 3). Not a plan: real plans mix both (`search/`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import InvalidParameter
from paceline.placement.arrivals import burstier, draw_for_models
from paceline.placement.case import Case
from paceline.placement.cluster import Cluster
from paceline.placement.model import PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.search import plan
from paceline.theory.heat_map import HeatMap
from paceline.theory.tables import Table
from paceline.types import Progress

FACTORS: dict[str, tuple[float, ...]] = {
    "memory": (0.5, 0.75, 1.0, 1.5, 2.0),
    "rate": (0.5, 1.0, 1.5, 2.0, 2.5),
    "cv": (0.33, 0.67, 1.0, 1.5, 2.0),
    "slo": (0.3, 0.5, 1.0, 2.0, 4.0),
}
"""The axes, with default factors of the case's values along them."""


@dataclass(frozen=True)
class ParallelMap:
    """Attainment of the two sides, cell by cell.

    Attributes:
        axes: names of x and y; x, y: the factors along them.
        parallel, replicated: [y][x], fractions of requests in time; 0 where no model can be served.
    """

    axes: tuple[str, str]
    x: tuple[float, ...]
    y: tuple[float, ...]
    parallel: tuple[tuple[float, ...], ...]
    replicated: tuple[tuple[float, ...], ...]

    @property
    def gain(self) -> list[list[float]]:
        """[y][x] percentage points of attainment gained by model parallelism; negative where replication is better."""
        rows = zip(self.parallel, self.replicated, strict=True)
        return [[100 * (a - b) for a, b in zip(*row, strict=True)] for row in rows]

    def heat_map(self) -> HeatMap:
        """The gains as a heat map."""
        return HeatMap(
            title="When model parallelism pays",
            x_label=f"{self.axes[0]}, times the case's",
            y_label=f"{self.axes[1]}, times the case's",
            value_label="points of attainment",
            columns=[f"{factor:g}" for factor in self.x],
            rows=[f"{factor:g}" for factor in self.y],
            values=self.gain,
        )

    def table(self) -> Table:
        """The gains as a table, one row per y."""
        columns = (f"{self.axes[1]} \\ {self.axes[0]}", *(f"{value:g}" for value in self.x))
        rows = tuple((y, *row) for y, row in zip(self.y, self.gain, strict=True))
        return Table("Points of attainment that model parallelism adds", columns, rows)


def parallel_map(
    case: Case,
    axes: tuple[str, str],
    factors: Mapping[str, Sequence[float]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ParallelMap:
    """Search both sides on every cell.

    Args:
        case: scaled along the axes; its models need deadlines.
        axes: two names of `FACTORS`.
        factors: by axis, instead of those of `FACTORS`.
        seed: of the arrivals drawn if ``cv`` is an axis.
        progress: called with (cells done, number of cells).

    Raises:
        InvalidParameter: unknown or equal axes, a factor not above 0, no deadline, drafters without a place, or a model
            profiled on single devices only.
    """
    given = {axis: tuple(map(float, (factors or {}).get(axis, FACTORS.get(axis, ())))) for axis in axes}
    _check(case, axes, given)
    split = _without_single_devices(case)
    x, y = given[axes[0]], given[axes[1]]
    cells = []
    for down in y:
        for across in x:
            scales = {axes[0]: across, axes[1]: down}
            cells.append((_attained(scaled(split, scales, seed), "mp-search"),
                          _attained(scaled(case, scales, seed), "sr-greedy")))  # fmt: skip
            if progress is not None:
                progress(len(cells), len(x) * len(y))
    rows = [cells[start : start + len(x)] for start in range(0, len(cells), len(x))]
    parallel, replicated = (tuple(tuple(cell[side] for cell in row) for row in rows) for side in (0, 1))
    return ParallelMap(axes, x, y, parallel, replicated)


def example_case(duration: float = 300.0, seed: int = 0) -> Case:
    """Four devices of 13 GB and four models of 2.7 billion parameters, after the paper's motivating sweeps.

    A pass takes 238 ms, and 2 % more for every doubling of the stages; ten bursty requests a second (CV 3) in all, each
    with five passes of time.
    """
    seconds, size = 0.238, 5.4e9
    entries = {}
    for doublings in range(3):
        stages = 2**doublings
        each = seconds * (1 + 0.02 * doublings) / stages
        entries[ParallelConfig(1, stages)] = Stages((each,) * stages, (size / stages,) * stages)
    models = tuple(PlacedModel(f"2.7b-{i}", "2.7b", 2.5, 3.0, 5 * seconds) for i in range(4))
    profiles = {"2.7b": ModelProfile("2.7b", entries)}
    return Case("example", Cluster(4, 13e9), models, profiles, draw_for_models(models, duration, seed))


def _check(case: Case, axes: tuple[str, str], factors: Mapping[str, tuple[float, ...]]) -> None:
    for axis in axes:
        if axis not in FACTORS or axes[0] == axes[1]:
            raise InvalidParameter("over", f"{','.join(axes)}", f"name two of {', '.join(FACTORS)}")
        if not factors[axis] or not all(0 < factor < float("inf") for factor in factors[axis]):
            raise InvalidParameter(axis, f"factors {list(factors[axis])}", "give numbers above 0")
    if not case.has_slo:
        raise InvalidParameter("slo", "no model has a deadline, so all attain 100 %", "give the models deadlines")
    if case.drafts:
        raise InvalidParameter("draft", "maps know no drafters", "leave the draft blocks out")


def _without_single_devices(case: Case) -> Case:
    """The case without splits on a single device. Raises InvalidParameter if a model has no other."""
    profiles = {}
    for name in {model.profile_type for model in case.models}:
        entries = {split: s for split, s in case.profiles[name].entries.items() if split.num_devices > 1}
        if not entries:
            problem = f"{name!r} has no split over several devices"
            raise InvalidParameter("profiles", problem, "profile one, e.g. op 1, pp 2")
        profiles[name] = ModelProfile(name, entries)
    return replace(case, profiles=profiles)


def scaled(case: Case, scales: Mapping[str, float], seed: int) -> Case:
    """The case with some of `FACTORS` scaled; `seed` is that of arrivals drawn with another burstiness.

    Raises:
        InvalidParameter: no case can be like that.
    """
    if "cv" in scales:
        case = case.with_workload(burstier(case.workload, scales["cv"], len(case.models), seed))
    case = replace(case, cluster=case.cluster.scale_memory(scales.get("memory", 1.0)))
    return case.scale_rate(scales.get("rate", 1.0)).scale_slo(scales.get("slo", 1.0))


def _attained(case: Case, policy: str) -> float:
    try:
        return plan(case, policy, allow_unplaceable=True).slo_attainment
    except InvalidParameter:  # no group of this kind can serve any model: too large, or too slow for its deadline
        return 0.0
