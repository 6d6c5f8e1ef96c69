"""`paceline place`: from models, devices and traffic to a plan, what it reaches, and how long planning took."""

import json
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from paceline.cli import case_options as c
from paceline.cli.terminal import messages, progress_bars, show_table
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.placement import Case
    from paceline.placement.coplacement import CoPlan
    from paceline.placement.explain import Explanation
    from paceline.placement.search import Plan
    from paceline.placement.search.disaggregated import SeparateRoles
    from paceline.placement.search.honest import HeldOut

POLICIES = (
    "auto, anneal, large, exact, sr-greedy, sr-search, sr-uniform, mp-greedy-2, mp-greedy-4, mp-greedy-8, "
    "mp-round-robin, mp-search, mp-search-sep, mp-beam, clockwork++, replan"
)
"""The planner's policies by name, written out because asking it would load a compiler for every `--help`."""


def place(
    case: c.CaseFile = None,
    policy: Annotated[str, typer.Option("--policy", help=f"One of {POLICIES}.")] = "auto",
    time_budget: Annotated[float | None, typer.Option("--time-budget", help="Seconds; the best until then.")] = None,
    effort: Annotated[int | None, typer.Option("--effort", help="Simulated requests that annealing may spend.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same seed and effort, same plan.")] = 0,
    window: Annotated[float, typer.Option("--window", help="Seconds of a window of clockwork++ and replan.")] = 60.0,
    allow_unplaceable: Annotated[
        bool, typer.Option("--allow-unplaceable", help="Plan without models that no group can serve.")
    ] = False,
    profiles: c.Profiles = None,
    model: c.Models = None,
    num_devices: c.NumDevices = None,
    mem_budget: c.MemBudget = None,
    duration: c.Duration = None,
    rate_scale: c.RateScale = 1.0,
    cv_scale: c.CvScale = 1.0,
    slo_scale: c.SloScale = 1.0,
    reach: Annotated[
        float | None, typer.Option("--reach", help="Plan for the fewest devices that reach it, e.g. 0.99.")
    ] = None,
    price: Annotated[float | None, typer.Option("--price", help="Of a device per hour; the cost is told.")] = None,
    pools: Annotated[
        float | None,
        typer.Option("--pools", help="GB/s of links: compare with devices that only read prompts or only generate."),
    ] = None,
    held: Annotated[
        bool,
        typer.Option("--held-out/--no-held-out", help="Search on the first half too, and judge that on the second."),
    ] = True,
    why: Annotated[bool, typer.Option("--explain", help="Say why: loads, losses, what each choice buys.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here, as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw attainment over search time, or interference.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Say where to put which model, how to split it, and what share of requests will meet their deadline.

    A search fits its plan to the arrivals it sees; so the same search is run on the first half of them too, and what it
    found is played against the second half.

    Ctrl-C ends the search and prints the best plan so far.

    Examples:

        paceline place --case case.yaml

        paceline place --case case.json --policy mp-search --json

        paceline place --case case.yaml --reach 0.99 --price 2.5

        paceline place --case case.yaml --explain --plot interference.png

        paceline place --case case.yaml --num-devices 16 --slo-scale 0.5 --time-budget 10 --output plan.json

        paceline place --profiles p.yaml --num-devices 8 --mem-budget 13e9 --duration 600 --model "small rate=2 slo=0.5"
    """
    from paceline.cli import show_plan as show
    from paceline.cli.show_explanation import explanation_tables, interference_map
    from paceline.theory.plots import draw

    c.check_outputs(output, plot)
    if price is not None and not 0 < price < float("inf"):
        raise InvalidParameter("price", f"{price}", "give what a device costs per hour, above 0")
    loaded = c.load_case(case, profiles, model, num_devices, mem_budget, duration, seed)
    loaded = c.scaled(loaded, rate_scale, cv_scale, slo_scale, seed)
    if loaded.cluster.types:
        _check_types(why, pools, price)
    with _progress() as progress:
        options: dict[str, Any] = {"effort": effort, "seed": seed, "window": window, "progress": progress}
        options |= {"time_budget": time_budget, "allow_unplaceable": allow_unplaceable}
        found, tried = _planned(loaded, policy, reach, options)
    loaded, made = found.case, found.plan
    honest = _held_out(loaded, made, time_budget, effort, seed, allow_unplaceable) if held else None
    explanation = _explained(loaded, made) if why else None
    apart = None if pools is None else _separate_roles(loaded, pools)
    extra = {} if explanation is None else {"explanation": explanation.to_record()}
    extra |= {} if honest is None else show.honest_record(*honest)
    extra |= {} if apart is None else show.roles_record(apart)
    extra |= show.cost_record(loaded.cluster, price, tried)
    record = json.dumps(show.plan_record(loaded, made) | show.drafts_record(found) | extra)
    if output is not None:
        output.write_text(record + "\n")
    if plot is not None:
        draw(show.search_chart(made) if explanation is None else interference_map(explanation.interference), plot)
    if as_json:
        print(record)
        return
    if found.places:
        show_table(show.drafts_table(found))
    show_table(show.group_table(loaded, made.placement, made.result))
    show_table(show.model_table(loaded, made.placement, made.result))
    for table in explanation_tables(explanation) if explanation is not None else ():
        show_table(table)
    print(show.summary(made))
    if reach is not None or price is not None or loaded.cluster.price:
        print(show.cost_summary(loaded.cluster, price, tried))
    if apart is not None:
        print(show.roles_summary(apart, made.slo_attainment))
    if honest is not None:
        print(show.honest_summary(*honest))


def _check_types(why: bool, pools: float | None, price: float | None) -> None:
    """Refuse what is for devices that are all alike."""
    for name, given in (("explain", why), ("pools", pools is not None), ("price", price is not None)):
        if given:
            remedy = "give prices in devices" if name == "price" else "plan for the devices of one type"
            raise InvalidParameter(name, "is for devices of one type", remedy)


def _planned(
    case: "Case", policy: str, reach: float | None, options: dict[str, Any]
) -> "tuple[CoPlan, Mapping[int, float] | Mapping[str, float]]":
    """The plan, on all devices or the fewest (of several types: the cheapest) that reach an attainment; attainment by
    devices of those tried."""
    from paceline.placement.coplacement import coplan
    from paceline.placement.search.fewest import cheapest_types, fewest_devices

    if reach is None:
        return coplan(case, policy, **options), {}

    def planned(smaller: "Case") -> "tuple[float, CoPlan]":
        found = coplan(smaller, policy, **options)
        return found.plan.slo_attainment, found

    fewest = (cheapest_types if case.cluster.types else fewest_devices)(case, reach, planned)
    return fewest.found, fewest.tried


def _held_out(
    case: "Case", made: "Plan", time_budget: float | None, effort: int | None, seed: int, allow_unplaceable: bool
) -> "tuple[HeldOut, tuple[float, float]] | None":
    """The plan on halves of its arrivals, and the confidence in its attainment; None where that cannot be.

    A plan that was searched on windows of a long trace has their error instead, from arrivals it has mostly not seen.
    """
    from paceline.placement.search.honest import confidence, held_out

    if made.windows or made.sample is not None:
        return None
    half = None if time_budget is None else time_budget / 2
    with messages.status("planning on one half of the arrivals, judging on the other"):
        try:
            found = held_out(case, made.policy, time_budget=half, effort=effort, seed=seed,
                             allow_unplaceable=allow_unplaceable)  # fmt: skip
        except InvalidParameter:  # no requests in one half, or for no model that could be served
            return None
        return found, confidence(case, made.placement, seed)


def _separate_roles(case: "Case", gigabytes: float) -> "SeparateRoles":
    from paceline.placement.search.disaggregated import separate_roles

    with messages.status("sharing the devices out between reading and generating"):
        return separate_roles(case, 1e9 * gigabytes)


def _explained(case: "Case", made: "Plan") -> "Explanation":
    """Why the plan is as it is."""
    from paceline.placement.explain import explain

    if made.windows:
        remedy = "explain the plan of another policy"
        raise InvalidParameter("explain", f"{made.policy} has a placement for each window", remedy)
    with progress_bars() as progress:
        return explain(case, made.placement, lambda done, total: progress("explaining", done, total))


@contextmanager
def _progress():
    """A bar on standard error that shows how far the search is and the best attainment so far."""
    columns = (
        TextColumn("planning", markup=False),
        BarColumn(),
        TextColumn("best {task.fields[best]:.2%}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as bars:
        task = bars.add_task("planning", total=1.0, best=0.0)
        yield lambda share, best: bars.update(task, completed=share, best=best)
