"""Compares the attainment of a real cluster of batching engines, on a local Ray, with the simulator's.

Every workload is served by real groups, and simulated with the same arrivals, lengths and deadlines and with the step
costs that the engines measured at their start. There are groups of one device, pipelines (1 x 2) and tensor groups
(2 x 1, or 3 x 1 where heads need it), steady and bursty traffic, short answers and long prompts. Columns:

- ``speeds``: the groups' measured seconds over those of their profiles (mean over the run). With other programs on the
  machine they are not 1, and the simulator can only be right at those speeds: ``simulated at speed``.
- ``error``: standard error of the difference in percentage points, from the requests where both differ, taken as
  independent.
- ``others, start`` and ``others``: percent of CPU time that other programs took while costs were measured and while
  requests were served. A run where this is not near 0 is not valid.

    python benchmarks/cluster_tokens.py                                       # six workloads, about 10 minutes
    python benchmarks/cluster_tokens.py --workloads bursty-replicas --duration 120
    python benchmarks/cluster_tokens.py --models smollm2-135m gemma3-270m.gguf --num-cpus 2 --load 0.8
    python benchmarks/cluster_tokens.py --same-traffic --load 0.6 --workloads prompts-pipeline prompts-replicas

The last of these compares a device for each model with both models on both devices (statistical multiplexing). Run it
while nothing else runs. The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
from cluster_noise import Others
from common import finish, show

from paceline.errors import InvalidParameter, RequestRejected
from paceline.models.resolve import resolve_model
from paceline.models.torch_executor.shard import check_tensor_parallel_size
from paceline.placement.arrivals import gamma_times
from paceline.placement.rules import OVERHEAD
from paceline.placement.tokens import TokenModel, TokenRequests, simulate_tokens
from paceline.placement.tokens.requests import drawn_lengths
from paceline.placement.workload import merge
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.group import Supervision
from paceline.serving.cluster.plan import ClusterPlan, plan_of
from paceline.serving.cluster.ray_groups import start_groups
from paceline.serving.cluster.ray_session import stop_ray
from paceline.serving.cluster.token_queue import TokenQueue
from paceline.serving.models.job import Job
from paceline.types import SamplingParams


@dataclass(frozen=True)
class Setting:
    """Groups and their traffic: burstiness, tokens of prompts and answers."""

    groups: list
    cv: float
    prompt_tokens: int
    output_tokens: int


WORKLOADS = {
    "steady-replicas": Setting([[1, 1, [0]], [1, 1, [1]]], 1.0, 16, 24),
    "bursty-replicas": Setting([[1, 1, [0]], [1, 1, [1]]], 4.0, 16, 24),
    "bursty-shared": Setting([[1, 1, [0, 1]], [1, 1, [0, 1]]], 4.0, 16, 24),
    "bursty-pipeline": Setting([[1, 2, [0, 1]]], 4.0, 16, 24),
    "bursty-tensor": Setting([[2, 1, [0, 1]]], 4.0, 16, 24),
    "long-prompts-shared": Setting([[1, 1, [0, 1]], [1, 1, [0, 1]]], 2.0, 192, 8),
}
MULTIPLEXING = {  # a device for each model, against both models on both; prompts of one pass, where processors decide
    "prompts-replicas": Setting([[1, 1, [0]], [1, 1, [1]]], 3.0, 128, 1),
    "prompts-pipeline": Setting([[1, 2, [0, 1]]], 3.0, 128, 1),
}


def main() -> None:
    args = parse()
    rows = []
    for name in args.workloads:
        rows.append({"workload": name, **asyncio.run(measured((WORKLOADS | MULTIPLEXING)[name], args))})
        print({key: value for key, value in rows[-1].items() if key != "timeline"}, file=sys.stderr)
    header = ["requests", "measured", "simulated", "points", "error", "simulated at speed", "others, start", "others"]
    shown = [[row["workload"], *(row[name] for name in header)] for row in rows]
    show("answered in time, %", ["workload", *header], shown)
    finish({"workloads": rows, "largest_difference_points": max(abs(row["points"]) for row in rows)})


async def measured(setting: Setting, args: argparse.Namespace) -> dict:
    """Serve one workload, simulate it, and compare."""
    plan, others = plan_for(setting, args), Others()
    try:
        dispatcher = Dispatcher(plan, start_groups(plan, args.num_cpus), Supervision())
        await dispatcher.start()
        plan, requests = with_traffic(dispatcher.plan, setting, args)
        dispatcher.expect(plan)
        others_at_start, others = others.share(), Others()
        watch = asyncio.create_task(watched_speeds(dispatcher, shown := []))
        seconds = await serve(dispatcher, requests)
        watch.cancel()
        others_then = others.share()
        counts = dict(dispatcher.controller.counts)
        await dispatcher.close()
    finally:
        stop_ray()
    tables = [
        {spec.name: profile for spec, profile in zip(plan.held_by(g), profiles, strict=True) if profile is not None}
        for g, profiles in enumerate(plan.pass_profiles or ())
    ]
    specs = [TokenModel(m.name, m.slo, expected_tokens=float(m.num_tokens or 1)) for m in plan.models]
    speeds, slo = np.exp(np.log(shown).mean(axis=0)).tolist(), plan.models[0].slo
    told = simulate_tokens(requests, specs, tables, OVERHEAD)
    told_at_speed = simulate_tokens(requests, specs, tables, OVERHEAD, speeds)
    in_time = seconds <= slo
    both = 100 * float(in_time.mean()), 100 * told.slo_attainment
    return {
        "requests": requests.num_requests,
        "measured": both[0],
        "simulated": both[1],
        "points": both[0] - both[1],
        "error": 100 * float(np.std(in_time.astype(float) - told.in_time) / np.sqrt(len(in_time))),
        "simulated at speed": 100 * told_at_speed.slo_attainment,
        "others, start": percent(others_at_start),
        "others": percent(others_then),
        "slo": slo,
        "median_seconds": [float(np.nanmedian(seconds)), float(np.nanmedian(told.latency))],
        "speeds": speeds,
        "counts": counts,
        "profiles": [[profile.record() for profile in by_name.values()] for by_name in tables],
        "timeline": timeline(requests, seconds, told.latency),
    }


def timeline(requests: TokenRequests, seconds: np.ndarray, simulated: np.ndarray) -> list[dict]:
    """Per request its arrival, model and seconds to the answer, measured and simulated; None for rejected requests."""
    columns = {
        "at": requests.arrivals.times, "model": requests.arrivals.models, "prompt": requests.prompt_tokens,
        "output": requests.output_tokens, "seconds": seconds, "simulated": simulated,
    }  # fmt: skip
    rows = zip(*(column.round(3).tolist() for column in columns.values()), strict=True)
    return [{name: None if x != x else x for name, x in zip(columns, row, strict=True)} for row in rows]


def percent(share: float | None) -> float:
    """`share` in percent, rounded; -1 where it is unknown."""
    return -1.0 if share is None else round(100 * share, 1)


def plan_for(setting: Setting, args: argparse.Namespace) -> ClusterPlan:
    """The groups with two models: the given ones in turn, or twice one that the tensor degree divides."""
    paths, groups = [args.models[0], args.models[-1]], setting.groups
    degree = max(tensor for tensor, _, _ in groups)
    if degree > 1:
        splits = {path: [n for n in (2, 3) if splits_by(path, n)] for path in paths}
        paths = [path for path in paths if degree in splits[path]][:1] * 2 or paths[:1] * 2
        groups = [
            [min(splits[paths[0]], key=lambda n: abs(n - degree)), pipeline, held] for _, pipeline, held in groups
        ]
    engine = {"dtype": args.dtype}
    if args.same_traffic or any(tensor * pipeline > 1 for tensor, pipeline, _ in groups):  # shards run in torch
        engine = {"dtype": args.parallel_dtype, "executor": "torch"}
    lengths = {"num_tokens": setting.output_tokens, "prompt_tokens": setting.prompt_tokens}
    models = [{"name": name, "path": path, "engine": engine} | lengths for name, path in zip("ab", paths, strict=True)]
    return plan_of({"groups": groups, "models": models, "overhead": OVERHEAD})


def splits_by(path: str, degree: int) -> bool:
    """Whether the tensor degree divides the model evenly."""
    try:
        check_tensor_parallel_size(resolve_model(path).checkpoint.config, degree)
    except InvalidParameter:
        return False
    return True


async def watched_speeds(dispatcher: Dispatcher, shown: list[list[float]]) -> None:
    """Append the speeds that the groups have learned to `shown`, twice a second."""
    while True:
        queues = dispatcher.controller.queues
        shown.append([queue.scale for queue in queues if isinstance(queue, TokenQueue)])
        await asyncio.sleep(0.5)


def with_traffic(plan: ClusterPlan, setting: Setting, args: argparse.Namespace) -> tuple[ClusterPlan, TokenRequests]:
    """Deadlines of `slo_scale` times a lone answer, and arrivals at `load` of the groups' capacity with 8 requests."""
    alone, each = [], []
    for g, profiles in enumerate(plan.pass_profiles or ()):
        for spec, profile in zip(plan.held_by(g), profiles, strict=True):
            assert profile is not None, f"group {g} did not measure {spec.name}"
            read = profile.pass_seconds(0, 1, 0, setting.prompt_tokens)
            alone.append(read + setting.output_tokens * profile.pass_seconds(1, 1, setting.prompt_tokens))
            made = setting.output_tokens * profile.pass_seconds(8, 8, setting.prompt_tokens) / 8
            stages = profile.stages
            each.append(read / (profile.prefill_overlap or stages) + made / (profile.overlap or stages))
    slo = args.slo or args.slo_scale * max(alone)
    rate = args.rate or args.load * len(setting.groups) / (sum(each) / len(each)) / len(plan.models)
    if args.same_traffic:
        args.slo, args.rate = slo, rate
    rng = np.random.default_rng(args.seed)
    arrivals = merge([gamma_times(rate, setting.cv, args.duration, rng) for _ in plan.models])
    prompts = drawn_lengths(setting.prompt_tokens, 0.5, arrivals.num_requests, rng)
    outputs = drawn_lengths(setting.output_tokens, 0.5, arrivals.num_requests, rng)
    models = tuple(replace(model, slo=slo, num_tokens=setting.output_tokens) for model in plan.models)
    return replace(plan, models=models), TokenRequests(arrivals, prompts, outputs)


async def serve(dispatcher: Dispatcher, requests: TokenRequests) -> np.ndarray:
    """Seconds from each request's arrival to its answer; NaN for rejected requests."""
    specs, arrivals = dispatcher.plan.models, requests.arrivals
    seconds, began = np.full(requests.num_requests, np.nan), time.perf_counter()
    rng = np.random.default_rng(0)

    async def ask(number: int) -> None:
        spec = specs[arrivals.models[number]]
        prompt = tuple(rng.integers(100, 5000, int(requests.prompt_tokens[number])).tolist())
        count = int(requests.output_tokens[number])
        params = SamplingParams(temperature=0.0, max_tokens=count, min_tokens=count)
        try:
            async for _ in dispatcher.generate(Job(str(number), spec.name, prompt, params=params)):
                pass
            seconds[number] = time.perf_counter() - began - arrivals.times[number]
        except RequestRejected:
            pass

    tasks = []
    for number in range(requests.num_requests):
        await asyncio.sleep(arrivals.times[number] - (time.perf_counter() - began))
        tasks.append(asyncio.create_task(ask(number)))
    await asyncio.gather(*tasks)
    return seconds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2-135m"], help="one, or two that share the groups")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--parallel-dtype", default="float32", help="of groups of several devices")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS | MULTIPLEXING, default=list(WORKLOADS))
    parser.add_argument("--num-cpus", type=int, default=2)
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of arrivals")
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--slo-scale", type=float, default=4.0, help="deadlines in lone answers")
    parser.add_argument("--slo", type=float, help="seconds; in place of the scale")
    parser.add_argument("--rate", type=float, help="requests per second of each model; in place of the load")
    parser.add_argument("--same-traffic", action="store_true", help="all in torch, with the first's deadline and rate")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
