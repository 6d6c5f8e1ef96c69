"""A thousand models on a thousand devices: attainment by planning time, and a trace of 100 million requests.

    nice -n 10 python benchmarks/placement_scale.py                    every policy at budgets of 1, 5, 30 and 120 s
    nice -n 10 python benchmarks/placement_scale.py --whole            our search without a time budget
    nice -n 10 python benchmarks/placement_scale.py --trace 100000000  draw that many requests, plan for 60 s, play all

Models are the six small types of AlpaServe's Table 1 in turn, their shares of the traffic a power law, arrivals bursty,
deadlines five times the latency on one device. Attainment is of the whole trace, however little a search looked at.
One process, one thread. The last line of standard output is one JSON object.
"""

import argparse
import resource
import time
from typing import Any

import numpy as np
from alpaserve_sets import SIX_SMALL, TYPES, USABLE, profile
from common import console, finish, show

from paceline.placement import Case, Cluster, PlacedModel
from paceline.placement.arrivals import draw_for_models, power_law_shares
from paceline.placement.search import Plan, plan

BASELINES = ("mp-round-robin", "sr-uniform", "sr-greedy", "mp-greedy-2", "mp-greedy-4", "mp-greedy-8", "mp-search")
RATE_PER_DEVICE = 4.0
CV, SLO_SCALE = 4.0, 5.0


def main() -> None:
    args = parse()
    if args.trace:
        finish(long_trace(args))
        return
    case = large_case(args.models, args.devices, args.requests, args.load, args.seed)
    console.print(
        f"{args.models} models, {args.devices} devices, {case.workload.num_requests:,} requests", highlight=False
    )
    if args.whole:
        finish({"whole": described(planned(case, "auto", None, args))})
        return
    rows = []
    for budget in args.budgets:
        for policy in ("auto", *args.baselines):
            rows.append(row(case, policy, budget, args))
            console.print(rows[-1], highlight=False)
    show("attainment", list(rows[0]), [list(r.values()) for r in rows])
    beaten = {
        budget: at["auto"] > max(reached for policy, reached in at.items() if policy != "auto")
        for budget in args.budgets
        if (at := {r["policy"]: r["attainment"] for r in rows if r["budget_s"] == budget})
    }
    finish({"rows": rows, "auto_is_better_than_every_baseline": beaten, "peak_gb": peak()})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=1024)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--load", type=float, default=1.0, help="times 4 requests per second and device")
    parser.add_argument("--budgets", type=float, nargs="+", default=[1.0, 5.0, 30.0, 120.0])
    parser.add_argument("--baselines", nargs="+", default=list(BASELINES))
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--trace", type=int, help="requests")
    parser.add_argument("--trace-budget", type=float, default=60.0)
    parser.add_argument("--cpu-time", action="store_true", help="processor seconds, where others work too")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def large_case(num_models: int, num_devices: int, num_requests: int, load: float, seed: int) -> Case:
    """A case with the types in turn and random popularity ranks, so that no type is the most popular."""
    rate = load * RATE_PER_DEVICE * num_devices
    shares = np.random.default_rng(seed).permutation(power_law_shares(num_models))
    models = []
    for i, share in enumerate(shares):
        kind = SIX_SMALL[i % len(SIX_SMALL)]
        models.append(PlacedModel(f"{kind}-{i}", kind, rate * float(share), CV, SLO_SCALE * TYPES[kind][1]))
    arrivals = draw_for_models(models, num_requests / rate, seed)
    profiles = {kind: profile(kind) for kind in SIX_SMALL}
    return Case("large", Cluster(num_devices, USABLE), tuple(models), profiles, arrivals)


def row(case: Case, policy: str, budget: float, args: argparse.Namespace) -> dict[str, Any]:
    return {"budget_s": budget, "policy": policy, **described(planned(case, policy, budget, args))}


def planned(case: Case, policy: str, budget: float | None, args: argparse.Namespace) -> Plan:
    clock = time.process_time if args.cpu_time else time.perf_counter
    return plan(case, policy, time_budget=budget, seed=args.seed, clock=clock)


def described(made: Plan) -> dict[str, Any]:
    sample = made.sample
    looked = {"sampled": sample and sample.num_requests, "error": sample and round(sample.standard_error, 5)}
    seconds = round(made.planning_seconds, 2)
    return {
        "attainment": round(made.slo_attainment, 4),
        "seconds": seconds,
        "devices_used": made.placement.num_devices,
        **looked,
    }


def long_trace(args: argparse.Namespace) -> dict[str, Any]:
    """Draw a trace, plan on windows of it, simulate all of it: seconds of each step, and peak memory."""
    began = time.perf_counter()
    case = large_case(args.models, args.devices, args.trace, args.load, args.seed)
    count, drawn = case.workload.num_requests, time.perf_counter()
    console.print(f"drew {count:,} requests in {drawn - began:.1f} s, {peak():.2f} GB", highlight=False)
    made = planned(case, "auto", args.trace_budget, args)
    done = time.perf_counter()
    seconds = {"draw_s": drawn - began, "plan_and_play_s": done - drawn, "total_s": done - began}
    rounded = {name: round(value, 1) for name, value in seconds.items()}
    return {"requests": count, **rounded, "peak_gb": peak(), **described(made)}


def peak() -> float:
    """The most memory this process had, GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


if __name__ == "__main__":
    main()
