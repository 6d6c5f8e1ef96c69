"""`paceline simulate`: how a plan fares, on its own traffic or on another."""

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import case_options as c
from paceline.cli.terminal import show_table


def simulate(
    plan: Annotated[Path, typer.Option("--plan", help="Plan file of `paceline place --output`.")],
    case: c.CaseFile = None,
    profiles: c.Profiles = None,
    model: c.Models = None,
    num_devices: c.NumDevices = None,
    mem_budget: c.MemBudget = None,
    duration: c.Duration = None,
    rate_scale: c.RateScale = 1.0,
    cv_scale: c.CvScale = 1.0,
    slo_scale: c.SloScale = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the arrivals that are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Play arrivals through a plan: attainment, latency and load, per model and per group.

    Examples:

        paceline simulate --plan plan.json --case case.yaml

        paceline simulate --plan plan.json --case case.yaml --rate-scale 2 --json

        paceline simulate --plan plan.json --case case.yaml --cv-scale 1.5 --slo-scale 0.5 --seed 1
    """
    from paceline.cli.show_plan import group_table, model_table, result_record
    from paceline.placement import simulate as run
    from paceline.placement.coplacement import resolve
    from paceline.placement.plan_file import read_placement

    loaded = c.load_case(case, profiles, model, num_devices, mem_budget, duration, seed)
    loaded = c.scaled(loaded, rate_scale, cv_scale, slo_scale, seed)
    placement, places = read_placement(plan, loaded.models)
    indices = {each.name: m for m, each in enumerate(loaded.models)}
    loaded = resolve(loaded, {indices[name]: place for name, place in places.items()})
    result = run(placement, loaded)
    if as_json:
        print(json.dumps(result_record(loaded, result)))
        return
    show_table(group_table(loaded, placement, result))
    show_table(model_table(loaded, placement, result))
    print(f"{result.slo_attainment:.2%} of requests in time, mean latency {result.mean_latency_served:.3f} s")
