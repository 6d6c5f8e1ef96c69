"""`paceline simulate`: how a plan fares, on its own traffic or on another."""

import json
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import case as c
from paceline.cli.options.groups import grouped
from paceline.cli.terminal.streams import output as standard_output
from paceline.cli.terminal.streams import show_table


@grouped
def simulate(
    plan: Annotated[Path, typer.Option("--plan", help="Plan file of `paceline place --output`.")],
    *,
    given: c.ScaledCase,
    seed: c.Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Play arrivals through a plan: attainment, latency and load, per model and per group.

    Examples:

        paceline simulate --plan plan.json --case case.yaml

        paceline simulate --plan plan.json --case case.yaml --rate-scale 2 --json

        paceline simulate --plan plan.json --case case.yaml --batch-sizes 1

        paceline simulate --plan plan.json --case case.yaml --cv-scale 1.5 --slo-scale 0.5 --seed 1
    """
    from paceline.cli.terminal.plans import batches_summary, group_table, model_table, result_record
    from paceline.placement import simulate as run
    from paceline.placement.coplacement import resolve
    from paceline.placement.plan_file import read_placement

    loaded = given.load(seed)
    placement, places = read_placement(plan, loaded.models)
    indices = {each.name: m for m, each in enumerate(loaded.models)}
    loaded = resolve(loaded, {indices[name]: place for name, place in places.items()})
    result = run(placement, loaded)
    if as_json:
        print(json.dumps(result_record(loaded, result)))
        return
    show_table(group_table(loaded, placement, result), standard_output)
    show_table(model_table(loaded, placement, result), standard_output)
    print(f"{result.slo_attainment:.2%} of requests in time, mean latency {result.mean_latency_served:.3f} s")
    if batches := batches_summary(loaded):
        print(batches)
