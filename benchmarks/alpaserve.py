"""When model parallelism pays for many models on many devices: AlpaServe's experiments (arXiv 2302.11665), repeated.

    python benchmarks/alpaserve.py --quick                      all sets and sweeps, small: a few minutes
    python benchmarks/alpaserve.py --sets S3 --axes rate cv     some of them in full
    python benchmarks/alpaserve.py --plot docs/plots            draw every sweep
    python benchmarks/alpaserve.py --trace azure.csv --sets S1  with the traffic of a recorded trace
    python benchmarks/alpaserve.py --max-batch 8 --axes slo     with batches of up to eight requests
    python benchmarks/alpaserve.py --two-models                 two models on two devices: closed form and simulation
    python benchmarks/alpaserve.py --cases DIR                  DIR/cases/ against DIR/reference_results.json
    python benchmarks/alpaserve.py --held-out                   every set: planned on one half, evaluated on the other

A sweep varies one of: rate, cv (burstiness; with a trace, a factor of its own), slo (deadline over the latency on one
device), devices. For each policy it reports the SLO attainment, and the value at which 99 % of the requests are still
in time. The last line of standard output is one JSON object.
"""

import argparse
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from alpaserve_sets import BATCH_SIZES, SETS, Trace, make_case
from common import console, finish, show
from rich.progress import track

from paceline.errors import InvalidParameter
from paceline.placement import (
    Case,
    Cluster,
    ControllerRules,
    Evaluator,
    ModelProfile,
    ParallelConfig,
    PlacedModel,
    Placement,
    Stages,
    Workload,
    read_case,
)
from paceline.placement.arrivals import gamma_times
from paceline.placement.search import NAMES, Plan, plan
from paceline.placement.search.honest import held_out
from paceline.placement.workload import merge
from paceline.theory.curves import Chart, Series
from paceline.theory.plots import draw
from paceline.theory.queueing import pipeline_latency, simple_latency

GOAL = 0.99
POLICIES = ("sr-greedy", "clockwork++", "mp-round-robin", "mp-search", "auto")
SMALL_MODELS_ONLY = ("sr-greedy", "clockwork++", "mp-round-robin")
DEDICATED = ["16x1", "8x2", "4x4", "2x8"]
"""Manual placements of S4: tensor x pipeline degree of the 16 devices that each model gets."""

EFFORT, QUICK_EFFORT = 60_000_000, 5_000_000

AXES: dict[str, tuple[str, tuple[float, ...], bool]] = {  # what changes, its values, whether more is harder
    "rate": ("rate_scale", (0.25, 0.5, 1.0, 1.5, 2.0), True),
    "cv": ("cv", (1.0, 2.0, 4.0, 6.0, 8.0), True),
    "slo": ("slo_scale", (1.5, 2.5, 5.0, 7.5, 10.0), False),
    "devices": ("num_devices", (0.5, 0.75, 1.0, 1.25, 1.5), False),
}
"""Name of an axis to (field, values, whether a larger value is harder); devices are relative to the set's number."""


def main() -> None:
    args = parse()
    if args.two_models:
        finish({"two_models": two_models(args.seed)})
    elif args.cases:
        finish({"cases": against_references(args.cases, args)})
    elif args.held_out:
        finish({"held_out": [row for name in args.sets for row in on_halves(case_of(name, args, quick=False), args)]})
    else:
        finish({"sweeps": [sweep(name, axis, args) for name in args.sets for axis in args.axes]})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--policies", nargs="+", choices=NAMES, default=list(POLICIES))
    parser.add_argument("--quick", action="store_true", help="shorter traffic, three points to a sweep, less effort")
    parser.add_argument("--two-models", action="store_true")
    parser.add_argument("--cases", type=Path, metavar="DIR", help="folder with cases/ and reference_results.json")
    parser.add_argument("--held-out", action="store_true", help="the second half of the time, planned on the first")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a CSV of arrivals, or Azure's trace of functions")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the trace that are used, from its start")
    parser.add_argument("--max-batch", type=int, choices=BATCH_SIZES, default=1, help="requests that may share a pass")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw every sweep into this folder")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def case_of(name: str, args: argparse.Namespace, quick: bool, **changed: float) -> Case:
    """A set with the traffic and the batches that were asked for."""
    trace = None if args.trace is None else Trace(args.trace, args.minutes)
    return make_case(name, args.seed, quick, trace, args.max_batch, **changed)


def sweep(name: str, axis: str, args: argparse.Namespace) -> dict[str, Any]:
    """One set of models over one axis."""
    field, values, _ = AXES[axis]
    values = values[::2] if args.quick else values
    if axis == "devices":
        values = tuple(round(SETS[name].num_devices * part) for part in values)
    policies = [policy for policy in args.policies if name != "S4" or policy not in SMALL_MODELS_ONLY]
    policies += DEDICATED if name == "S4" else []
    reached: dict[str, list[float]] = {policy: [] for policy in policies}
    seconds: dict[str, list[float]] = {policy: [] for policy in policies}
    for value in track(values, f"{name} {axis}", console=console, transient=True):
        case = case_of(name, args, args.quick, **{field: value})
        for policy in policies:
            made = planned(case, policy, args)
            reached[policy].append(made[0])
            seconds[policy].append(made[1])
    result = {
        "set": name, "trace": args.trace and args.trace.name, "max_batch": args.max_batch, "axis": axis,
        "values": list(values), "slo_attainment": reached, "planning_seconds": seconds,
        "at_99_percent": {policy: at_goal(axis, values, reached[policy]) for policy in policies},
    }  # fmt: skip
    show_sweep(result)
    if args.plot:
        series = tuple(Series(policy, values, reached[policy]) for policy in policies)
        goal = Series("99 %", values, [GOAL] * len(values))
        draw(Chart(f"{name}: attainment by {axis}", axis, "SLO attainment", (*series, goal)), plot_path(args, result))
    return result


def planned(case: Case, policy: str, args: argparse.Namespace) -> tuple[float, float]:
    """Attainment of a policy and its planning seconds; both 0 where the policy can serve no model of the case."""
    if policy in DEDICATED:
        return dedicated(case, policy), 0.0
    effort = QUICK_EFFORT if args.quick else EFFORT
    try:
        made = plan(case, policy, effort=effort, seed=args.seed, allow_unplaceable=True)
    except InvalidParameter:
        return 0.0, 0.0
    return made.slo_attainment, made.planning_seconds


def on_halves(case: Case, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Per policy the attainment on all arrivals, planned on all, and on the second half, planned on the first."""
    found = []
    for policy in track(args.policies, f"{case.name} in halves", console=console, transient=True):
        effort = QUICK_EFFORT if args.quick else EFFORT
        try:
            made = plan(case, policy, effort=effort, seed=args.seed, allow_unplaceable=True)
            half = None if made.windows else held_out(
                case, policy, effort=effort, seed=args.seed, allow_unplaceable=True
            )  # fmt: skip
        except InvalidParameter:  # it can serve no model of the case
            continue
        tested = {} if half is None else {
            "train": half.train, "test": half.test, "low": half.low, "high": half.high, "hindsight": half.hindsight
        }  # fmt: skip
        found.append({"case": case.name, "policy": policy, "whole": made.slo_attainment,
                      "seconds": made.planning_seconds} | tested)  # fmt: skip
    columns = ["policy", "whole", "train", "test", "low", "high", "hindsight", "seconds"]
    show(case.name, columns, [[row.get(column, "") for column in columns] for row in found])
    return found


def dedicated(case: Case, split: str) -> float:
    """Attainment when every model has its own 16 devices, all split alike; models without devices are not served."""
    tensor, pipeline = map(int, split.split("x"))
    groups = [[tensor, pipeline, [model]] for model in range(len(case.models))]
    fitting = groups[: case.cluster.num_devices // (tensor * pipeline)]
    return Evaluator(case).simulate(Placement.from_lists(fitting)).slo_attainment


def plot_path(args: argparse.Namespace, result: dict[str, Any]) -> Path:
    args.plot.mkdir(parents=True, exist_ok=True)
    return args.plot / f"alpaserve-{result['set'].lower()}-{result['axis']}.png"


def at_goal(axis: str, values: tuple[float, ...], reached: list[float]) -> float | None:
    """The hardest value of the axis with 99 % attainment, interpolated linearly; None if the easiest has less."""
    points = list(zip(values, reached, strict=True))
    points = points if AXES[axis][2] else points[::-1]  # from easy to hard
    if points[0][1] < GOAL:
        return None
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 < GOAL:
            return x0 + (x1 - x0) * (y0 - GOAL) / (y0 - y1)
    return points[-1][0]


def show_sweep(result: dict[str, Any]) -> None:
    reached, limits = result["slo_attainment"], result["at_99_percent"]
    rows = [
        [f"{value:g}", *(f"{100 * reached[policy][i]:.2f} %" for policy in reached)]
        for i, value in enumerate(result["values"])
    ]
    rows.append(["99 % at", *("-" if limits[policy] is None else f"{limits[policy]:.2f}" for policy in reached)])
    rows.append(["planning s", *(f"{max(result['planning_seconds'][policy]):.2f}" for policy in reached)])
    show(f"{result['set']}, {result['axis']}", [result["axis"], *reached], rows)


def against_references(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """For every case file our plan and the best reference, with planning seconds."""
    references = json.loads((folder / "reference_results.json").read_text())
    found = []
    for name in track(sorted(references), "cases", console=console, transient=True):
        case, policies = read_case(folder / "cases" / f"{name}.json"), references[name]
        best = max(policies, key=lambda p: (policies[p]["slo_attainment"], -policies[p]["mean_latency_served"]))
        wrong = [p for p, r in policies.items() if not reproduces(case, r)]
        ours = plan(case, seed=args.seed)
        found.append({
            "case": name, "best_policy": best, "reference": policies[best]["slo_attainment"],
            "reference_latency": policies[best]["mean_latency_served"],
            "reference_seconds": max(r["solve_s"] for r in policies.values()),
            "ours": ours.slo_attainment, "latency": ours.mean_latency_served, "seconds": ours.planning_seconds,
            "groups": ours.placement.to_lists(), "verdict": verdict(ours, policies[best]), "not_reproduced": wrong,
            "held_out": asdict(held_out(case, seed=args.seed)) if args.held_out else None,
        })  # fmt: skip
    rows = [
        [r["case"], f"{r['reference']:.5f}", f"{r['ours']:.5f}",
         f"{r['held_out']['test']:.5f}" if r["held_out"] else "", r["reference_seconds"], r["seconds"], r["verdict"]]
        for r in found
    ]  # fmt: skip
    show("cases", ["case", "reference", "ours", "held out", "its s", "our s", ""], rows)
    return found


def reproduces(case: Case, reference: dict[str, Any]) -> bool:
    """Whether the simulator reproduces the recorded attainment of a reference placement."""
    result = Evaluator(case).simulate(Placement.from_lists(reference["groups"]))
    return abs(result.slo_attainment - reference["slo_attainment"]) < 1e-9


def verdict(ours: Plan, reference: dict[str, Any]) -> str:
    """Whether our plan is better than the reference, equal or WORSE, by attainment and then by mean latency."""
    key = (ours.slo_attainment, -ours.mean_latency_served)
    other = (reference["slo_attainment"], -reference["mean_latency_served"])
    if abs(key[0] - other[0]) < 1e-12 and abs(key[1] - other[1]) < 1e-9:
        return "equal"
    return "better" if key > other else "WORSE"


def two_models(seed: int, rate: float = 3.0, seconds: float = 0.395, num_requests: int = 300_000) -> dict[str, float]:
    """Latency ratios of two models on one device each over both models on one pipeline of two devices."""
    apart, piped = simple_latency(rate, seconds), pipeline_latency(rate, seconds, seconds / 2)
    uneven = simple_latency(rate, seconds, 0.2)
    result = {
        "formula, even": apart / piped,
        "formula, 20/80": uneven / piped,
        "simulated, even": simulated_gain((0.5, 0.5), 1.0, rate, seconds, num_requests, seed),
        "simulated, 20/80": simulated_gain((0.2, 0.8), 1.0, rate, seconds, num_requests, seed),
        "simulated, even, cv 3": simulated_gain((0.5, 0.5), 3.0, rate, seconds, num_requests, seed),
    }
    show(f"two models, {rate:g} requests/s, {seconds:g} s each", ["", "gain"], [[k, v] for k, v in result.items()])
    return result


def simulated_gain(shares, cv: float, rate: float, seconds: float, num_requests: int, seed: int) -> float:
    """Simulated mean latency on separate devices over that in a pipeline, without overheads or deadlines."""
    rngs = np.random.default_rng(seed).spawn(2)
    streams = [gamma_times(s * rate, cv, num_requests / rate, g) for s, g in zip(shares, rngs, strict=True)]
    case = two_model_case(seconds, merge(streams))
    evaluator = Evaluator(case, rules=ControllerRules(overhead=0.0, stage_overhead=0.0))
    apart = evaluator.simulate(Placement.from_lists([[1, 1, [0]], [1, 1, [1]]]))
    piped = evaluator.simulate(Placement.from_lists([[1, 2, [0, 1]]]))
    return apart.mean_latency_served / piped.mean_latency_served


def two_model_case(seconds: float, workload: Workload) -> Case:
    entries = {
        ParallelConfig(1, 1): Stages((seconds,), (1.0,)),
        ParallelConfig(1, 2): Stages((seconds / 2,) * 2, (0.5, 0.5)),
    }
    models = (PlacedModel("a", "model"), PlacedModel("b", "model"))
    return Case("two models", Cluster(2, 1.0), models, {"model": ModelProfile("model", entries)}, workload)


if __name__ == "__main__":
    main()
