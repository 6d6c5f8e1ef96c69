"""The number of devices that a language model needs: by the planner, by the engine's scheduler, and on a real cluster.

A device is a processor of this machine. The cost of passes is measured for each number of devices, with all of them
busy. Arrivals are Poisson, with prompts and answers of one length and one deadline. For each rate it reports the
attainment that the planner expects on 1, 2, ... devices, that of the engine's scheduler simulated pass by pass (one
device, no request rejected), and that of real groups on a local Ray; and the fewest devices with 99 % for each.

    python benchmarks/cluster_devices.py                                  # about 5 minutes, on an idle machine
    python benchmarks/cluster_devices.py --rates 0.7 1.5 2.5 3 --duration 60

The last line of standard output is one JSON object.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cluster_tokens import serve
from common import console, finish, show

from paceline.placement import Case, Cluster, ModelProfile, ParallelConfig, PlacedModel, Stages, Workload
from paceline.placement.arrivals import gamma_times
from paceline.placement.rules import OVERHEAD
from paceline.placement.search import plan
from paceline.placement.serving_simulator import ServingModel, TokenRequest, simulate_serving
from paceline.placement.tokens import TokenProfile, TokenRequests
from paceline.placement.workload import merge
from paceline.scheduling import SchedulerConfig
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.plan import plan_of
from paceline.serving.cluster.ray_groups import start_groups
from paceline.serving.cluster.ray_session import stop_ray
from paceline.speculation import CostProfile

WANTED = 0.99


def main() -> None:
    args = parse()
    rows = []
    for devices in range(1, args.devices + 1):
        profile, found = asyncio.run(real(devices, args))
        rows += [row(rate, devices, profile, found[rate], args) for rate in args.rates]
    rows.sort(key=lambda each: each["rate"])
    show(f"in time within {args.slo:g} s, %", list(rows[0]), [list(each.values()) for each in rows])
    fewest = {
        rate: {name: fewest_of(rows, rate, name) for name in ("planned", "measured")} for rate in args.rates
    }  # fmt: skip
    console.print(f"fewest devices for {WANTED:.0%}: {fewest}", highlight=False)
    points = max(abs(each["planned"] - each["measured"]) for each in rows)
    finish({"rows": rows, "fewest": fewest, "largest_difference_points": points})


def fewest_of(rows: Sequence[dict[str, Any]], rate: float, name: str) -> int | None:
    """The fewest devices with an attainment by `name` of at least `WANTED`; None where there are none."""
    enough = [each["devices"] for each in rows if each["rate"] == rate and each[name] >= 100 * WANTED]
    return min(enough, default=None)


async def real(devices: int, args: argparse.Namespace) -> tuple[TokenProfile, dict[float, float]]:
    """The measured cost of passes, and the attainment by rate of as many groups as `devices`."""
    spec = {"name": "a", "path": args.model, "slo": args.slo, "num_tokens": args.output_tokens,
            "engine": {"dtype": args.dtype}}  # fmt: skip
    cluster = plan_of({"groups": [[1, 1, [0]]] * devices, "models": [spec], "overhead": OVERHEAD})
    found = {}
    try:
        dispatcher = Dispatcher(cluster, start_groups(cluster, devices))
        await dispatcher.start()
        told = [each for (each,) in dispatcher.plan.pass_profiles or () if each is not None]
        profile = max(told, key=lambda each: each.pass_seconds(8, 8))
        dispatcher.expect(replace(dispatcher.plan, pass_profiles=((profile,),) * devices))
        for rate in args.rates:
            seconds = await serve(dispatcher, requests_of(rate, args))
            found[rate] = float((seconds <= args.slo).mean())
            console.print(f"{devices} devices, {rate:g} requests/s: {found[rate]:.1%} in time", highlight=False)
        await dispatcher.close()
    finally:
        stop_ray()
    return profile, found


def requests_of(rate: float, args: argparse.Namespace) -> TokenRequests:
    """The same arrivals for planner, simulator and cluster."""
    arrivals = merge([gamma_times(rate, 1.0, args.duration, np.random.default_rng(args.seed))])
    count = arrivals.num_requests
    return TokenRequests(arrivals, np.full(count, args.prompt_tokens), np.full(count, args.output_tokens))


def row(rate: float, devices: int, profile: TokenProfile, measured: float, args: argparse.Namespace) -> dict[str, Any]:
    """One rate and number of devices; attainments in percent."""
    requests = requests_of(rate, args)
    arrivals = Workload(
        requests.arrivals.times, requests.arrivals.models, requests.prompt_tokens, requests.output_tokens
    )
    model = PlacedModel(
        "a", "p", rate, slo=args.slo, prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens
    )
    each = profile.pass_seconds(1)
    stages = Stages((each,), (1.0,), tokens=profile)
    case = Case(
        "devices", Cluster(devices, 2.0), (model,), {"p": ModelProfile("p", {ParallelConfig(): stages})}, arrivals
    )
    return {
        "rate": rate,
        "devices": devices,
        "planned": 100 * plan(case).slo_attainment,
        "by the engine's scheduler": 100 * by_scheduler(requests, profile, args) if devices == 1 else "",
        "measured": 100 * measured,
    }


def by_scheduler(requests: TokenRequests, profile: TokenProfile, args: argparse.Namespace) -> float:
    """Attainment of one engine's scheduler, simulated pass by pass with the measured cost."""
    model = ServingModel(
        CostProfile.by_context(profile.seconds), config=SchedulerConfig(prefix_caching=False), num_pages=100_000
    )
    times = requests.arrivals.times.tolist()
    asked = [TokenRequest(time, args.prompt_tokens, args.output_tokens) for time in times]
    return float((simulate_serving(asked, model).latency <= args.slo).mean())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--devices", type=int, default=2, help="the most; one processor each")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.7, 1.5, 2.5], help="requests per second")
    parser.add_argument("--duration", type=float, default=35.0, help="seconds of arrivals")
    parser.add_argument("--prompt-tokens", type=int, default=8)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--slo", type=float, default=6.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
