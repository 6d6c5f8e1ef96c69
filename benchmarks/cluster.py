"""Compares the SLO attainment of a real cluster, models on a local Ray, with the simulator's.

Service times are measured first, with all groups busy. Then requests of one fixed shape arrive by a workload, and the
share that is answered within its deadline is compared with the simulator's for the same arrivals and service times.

    python benchmarks/cluster.py
    python benchmarks/cluster.py --groups '[[1, 1, [0, 1]], [1, 1, [0, 2]]]' --dtypes int8 bfloat16 --duration 120
    python benchmarks/cluster.py --cv 3 --utilization 0.9 --slo-scale 3
    python benchmarks/cluster.py --kill 0@20 --duration 60        # ends group 0's process 20 s in, and watches

Run it while nothing else runs. The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
from common import finish, median, show
from rich.progress import track

from paceline.errors import InvalidParameter, RequestRejected
from paceline.placement import Case
from paceline.placement.arrivals import gamma_times
from paceline.placement.cluster import Cluster
from paceline.placement.model import PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.simulator import ControllerRules, Evaluator
from paceline.placement.workload import Workload, merge
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.events import EventLog
from paceline.serving.cluster.group import Supervision
from paceline.serving.cluster.plan import ClusterPlan, plan_of
from paceline.serving.cluster.ray_groups import RayGroup, start_groups
from paceline.serving.cluster.ray_session import stop_ray
from paceline.serving.models.job import Job
from paceline.types import SamplingParams

PROMPT = "Once upon a time there was"
RULES = ControllerRules(overhead=0.0, stage_overhead=0.0)
"""Measured times include all overheads."""


def main() -> None:
    args = parse()
    try:
        plan = make_plan(args)
        groups = start_groups(plan, args.num_cpus, executor=args.executor)
        finish(asyncio.run(measure(plan, groups, args)))
    except InvalidParameter as error:
        sys.exit(f"error: {error}")
    finally:
        stop_ray()


async def measure(plan: ClusterPlan, groups: list[RayGroup], args: argparse.Namespace) -> dict:
    """Start the cluster, measure service times, serve the workload, and simulate it."""
    if args.kill and args.kill[0] >= len(groups):
        raise InvalidParameter("kill", f"there is no group {args.kill[0]}", f"use 0 to {len(groups) - 1}")
    dispatcher = Dispatcher(plan, groups, Supervision(backoff=args.backoff), EventLog(sys.stderr))
    await dispatcher.start()
    seconds = await measure_service(plan, groups, args)
    plan = with_deadlines(plan, seconds, args.slo_scale)
    workload = draw(plan, args)
    dispatcher.expect(plan)
    outcomes, started = await serve(dispatcher, workload, args)
    events = [event | {"time": round(event["time"] - started, 3)} for event in dispatcher.events]
    await dispatcher.close()
    expected = Evaluator(case_of(plan, workload), rules=RULES).simulate(plan.placement, keep_latencies=True)
    return report(plan, workload, outcomes, expected, dispatcher.controller.counts, events, args)


def make_plan(args: argparse.Namespace) -> ClusterPlan:
    """The groups of ``--groups``, with models that differ in name and dtype."""
    groups = json.loads(args.groups)
    number = 1 + max(model for _, _, held in groups for model in held)
    models = [
        {"name": f"m{i}", "path": args.model, "engine": {"dtype": args.dtypes[i % len(args.dtypes)]},
         "num_tokens": args.max_tokens}
        for i in range(number)
    ]  # fmt: skip
    return plan_of({"groups": groups, "models": models})


async def measure_service(plan: ClusterPlan, groups: list[RayGroup], args: argparse.Namespace) -> list[list[float]]:
    """Median seconds of one request, by group and model, while all groups work."""

    async def one_group(index: int) -> list[list[float]]:
        names = [spec.name for spec in plan.held_by(index)]
        times: list[list[float]] = [[] for _ in names]
        for turn in range(args.rounds + 1):
            for number, name in enumerate(names):
                began = time.perf_counter()
                async for _ in groups[index].generate(job_for(f"warm-{index}-{turn}-{number}", name, args)):
                    pass
                if turn:  # the first answer warms caches
                    times[number].append(time.perf_counter() - began)
        return times

    everything = await asyncio.gather(*(one_group(index) for index in range(len(groups))))
    return [[median(times) for times in group] for group in everything]


def with_deadlines(plan: ClusterPlan, seconds: list[list[float]], slo_scale: float) -> ClusterPlan:
    """The plan with measured times, split equally over stages; deadlines are `slo_scale` times the slowest group's."""
    stages = tuple(
        tuple((total / group.parallel.pipeline,) * group.parallel.pipeline for total in times)
        for group, times in zip(plan.placement.groups, seconds, strict=True)
    )
    slowest = {
        index: max(times[group.models.index(index)] for group, times in zip(plan.placement.groups, seconds, strict=True)
                   if index in group.models)
        for index in range(len(plan.models))
    }  # fmt: skip
    models = tuple(replace(model, slo=slo_scale * slowest[index]) for index, model in enumerate(plan.models))
    return replace(plan, models=models, stage_seconds=stages)


def draw(plan: ClusterPlan, args: argparse.Namespace) -> Workload:
    """Arrivals that keep the groups busy for `utilization` of the time, every model asked for equally often."""
    assert plan.stage_seconds is not None
    capacity = sum(len(times) / sum(max(stages) for stages in times) for times in plan.stage_seconds)
    rate = args.utilization * capacity / len(plan.models)
    rng = np.random.default_rng(args.seed)
    return merge([gamma_times(rate, args.cv, args.duration, rng) for _ in plan.models])


def case_of(plan: ClusterPlan, workload: Workload) -> Case:
    """The case for the simulator; a model's time in a split is the mean over the groups with that split."""
    assert plan.stage_seconds is not None
    found: dict[str, dict[ParallelConfig, list[tuple[float, ...]]]] = {model.name: {} for model in plan.models}
    for index, times in enumerate(plan.stage_seconds):
        for spec, stages in zip(plan.held_by(index), times, strict=True):
            found[spec.name].setdefault(plan.placement.groups[index].parallel, []).append(stages)
    profiles = {}
    for name, entries in found.items():
        means = {split: tuple(np.mean(stages, axis=0)) for split, stages in entries.items()}
        profiles[name] = ModelProfile(name, {split: Stages(m, (0.0,) * len(m)) for split, m in means.items()})
    models = tuple(PlacedModel(model.name, model.name, slo=model.slo) for model in plan.models)
    return Case("cluster", Cluster(plan.placement.num_devices, 1.0), models, profiles, workload)


async def serve(dispatcher: Dispatcher, workload: Workload, args: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Seconds from arrival to answer (NaN for rejected, infinity for lost requests), and the time of the start."""
    names = [model.name for model in dispatcher.plan.models]
    latencies = np.full(workload.num_requests, np.nan)
    began, wall = time.perf_counter(), time.time()

    async def ask(number: int) -> None:
        try:
            async for _ in dispatcher.generate(job_for(str(number), names[workload.models[number]], args)):
                pass
            latencies[number] = time.perf_counter() - began - workload.times[number]
        except RequestRejected:
            pass
        except Exception as error:
            latencies[number] = np.inf
            print(f"request {number}: {error}", file=sys.stderr)

    killer = asyncio.create_task(kill_at(dispatcher, *args.kill)) if args.kill else None
    tasks = []
    for number in track(range(workload.num_requests), "serving", console=None, disable=not sys.stderr.isatty()):
        await asyncio.sleep(workload.times[number] - (time.perf_counter() - began))
        tasks.append(asyncio.create_task(ask(number)))
    await asyncio.gather(*tasks, *([killer] if killer else []))
    return latencies, wall


async def kill_at(dispatcher: Dispatcher, group: int, seconds: float) -> None:
    """End a group's process without warning."""
    await asyncio.sleep(seconds)
    handle = dispatcher.groups[group]
    assert isinstance(handle, RayGroup) and handle.pid is not None
    dispatcher.events.record("killed_by_benchmark", group=group, pid=handle.pid)
    os.kill(handle.pid, signal.SIGKILL)


def job_for(name: str, model: str, args: argparse.Namespace) -> Job:
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens, ignore_eos=True)
    return Job(name, model, PROMPT, params=params)


def report(plan, workload, latencies, expected, counts, events, args) -> dict:
    """The tables, and the record of the last line."""
    slos = np.array([model.slo for model in plan.models])[workload.models]
    in_time = latencies <= slos
    simulated = expected.latencies <= slos
    rows = []
    for index, model in enumerate(plan.models):
        of_model = workload.models == index
        measured, told = 100 * in_time[of_model].mean(), 100 * simulated[of_model].mean()
        rows.append([model.name, int(of_model.sum()), model.slo, measured, told, measured - told])
    measured, told = 100 * in_time.mean(), 100 * simulated.mean()
    rows.append(["all", workload.num_requests, "", measured, told, measured - told])
    header = ["model", "requests", "deadline, s", "measured, %", "simulated, %", "points"]
    show(f"SLO attainment, cv {args.cv:g}, utilization {args.utilization:g}", header, rows)
    windows = attainment_by_window(workload, in_time, simulated, args.window)
    if args.kill:
        show("over time", ["from, s", "requests", "measured, %", "simulated without the kill, %"], windows)
    return {
        "measured_attainment": measured / 100,
        "simulated_attainment": told / 100,
        "difference_points": measured - told,
        "requests": workload.num_requests,
        "counts": dict(counts),
        "lost": int(np.isinf(latencies).sum()),
        "stage_seconds": plan.stage_seconds,
        "groups": plan.placement.to_lists(),
        "windows": windows,
        "events": events if args.kill else [event for event in events if event["event"] != "request_moved"],
    }


def attainment_by_window(workload, in_time, simulated, window: float) -> list[list[float]]:
    """[start, requests, measured %, simulated %] of every window of seconds that has requests."""
    numbers = (workload.times // window).astype(int)
    rows = []
    for number in np.unique(numbers):
        inside = numbers == number
        rates = 100 * in_time[inside].mean(), 100 * simulated[inside].mean()
        rows.append([float(number * window), int(inside.sum()), *map(float, rates)])
    return rows


def group_and_seconds(text: str) -> tuple[int, float]:
    group, at, seconds = text.partition("@")
    if not at:
        raise argparse.ArgumentTypeError(f"{text!r} is not GROUP@SECONDS")
    return int(group), float(seconds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", nargs="+", default=["int8"], help="of the models, in turn")
    parser.add_argument("--groups", default="[[1, 1, [0, 1]], [1, 1, [0, 2]]]", help="as in a plan file")
    parser.add_argument("--num-cpus", type=int, default=2)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--max-tokens", type=int, default=16, help="output tokens of every request")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each service time")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of arrivals")
    parser.add_argument("--utilization", type=float, default=0.7)
    parser.add_argument("--cv", type=float, default=1.0, help="burstiness; 1 is Poisson")
    parser.add_argument("--slo-scale", type=float, default=4.0, help="deadlines in service times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", type=group_and_seconds, help="GROUP@SECONDS")
    parser.add_argument("--backoff", type=float, default=0.5, help="seconds before a first restart")
    parser.add_argument("--window", type=float, default=10.0, help="seconds, for attainment over time")
    return parser.parse_args()


if __name__ == "__main__":
    main()
