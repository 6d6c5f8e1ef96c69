"""`paceline place`: from models, devices and traffic to a plan, what it reaches, and how long planning took."""

import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import case as c
from paceline.cli.options.durations import seconds_of
from paceline.cli.options.groups import grouped
from paceline.cli.terminal.streams import TitledBar, messages, progress_bars, show_table
from paceline.cli.terminal.streams import output as standard_output
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

LEAST_LINK = 1e-3
"""GB/s: over anything slower the keys and values of one short prompt take seconds."""


@dataclass(frozen=True, slots=True)
class Search:
    """How a plan is searched."""

    policy: Annotated[str, typer.Option("--policy", help=f"One of {POLICIES}.")] = "auto"
    time_budget: Annotated[
        str | None, typer.Option("--time-budget", help="The best until then: seconds, or 90s, 5m.")
    ] = None
    effort: Annotated[int | None, typer.Option("--effort", help="Simulated requests that annealing may spend.")] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of drawn arrivals and of the search: same seed and effort, same plan.")
    ] = None
    beam_width: Annotated[
        int, typer.Option("--beam-width", help="Selections that mp-beam and sr-search keep in each round.")
    ] = 1
    window: Annotated[
        float | None, typer.Option("--window", help="Seconds of a window of clockwork++ and replan [60].")
    ] = None
    allow_unplaceable: Annotated[
        bool, typer.Option("--allow-unplaceable", help="Plan without models that no group can serve.")
    ] = False
    reach: Annotated[
        float | None, typer.Option("--reach", help="Plan for the fewest devices that reach it, e.g. 0.99.")
    ] = None

    @property
    def seconds(self) -> float | None:
        """`time_budget` in seconds. Raises InvalidParameter if it is no time."""
        return None if self.time_budget is None else seconds_of("time_budget", self.time_budget)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is computed besides the plan, and where it is written."""

    price: Annotated[float | None, typer.Option("--price", help="Of a device per hour; the cost is told.")] = None
    pools: Annotated[
        float | None,
        typer.Option("--pools", help="GB/s of links: compare with devices that only read prompts or only generate."),
    ] = None
    held: Annotated[
        bool,
        typer.Option("--held-out/--no-held-out", help="Search on the first half too, and judge that on the second."),
    ] = True
    why: Annotated[bool, typer.Option("--explain", help="Say why: loads, losses, what each choice buys.")] = False
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan here, as JSON.")] = None
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw attainment over search time, or interference.")] = (
        None
    )
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False

    def check(self, case: "Case") -> None:
        """Raise InvalidParameter for options that are invalid or do not apply to this case."""
        if self.price is not None and not 0 < self.price < float("inf"):
            raise InvalidParameter("price", f"{self.price}", "give what a device costs per hour, above 0")
        if self.pools is not None and not LEAST_LINK <= self.pools < float("inf"):
            raise InvalidParameter("pools", f"{self.pools:g} GB/s", f"give what a link moves, {LEAST_LINK:g} or more")
        _check_drafters(case)
        if not case.cluster.types:
            return
        for name, given in (("explain", self.why), ("pools", self.pools), ("price", self.price)):
            if given is not None and given is not False:
                remedy = "give prices in devices" if name == "price" else "plan for the devices of one type"
                raise InvalidParameter(name, "is for devices of one type", remedy)


@dataclass(frozen=True, eq=False, slots=True)
class _Found:
    """A plan with the requested analyses.

    Attributes:
        tried: attainment by devices, for those tried to find `--reach`.
        honest: (search on half of the arrivals, confidence interval of the attainment).
        apart: with separate devices for prefill and decoding.
    """

    made: "CoPlan"
    tried: Mapping[int, float] | Mapping[str, float]
    honest: "tuple[HeldOut, tuple[float, float]] | None"
    explanation: "Explanation | None"
    apart: "SeparateRoles | None"


def _check_drafters(case: "Case") -> None:
    """Raise InvalidParameter for drafters that engines do not have; the planner does not check them."""
    drafts = {model.name: model.speculative for model in case.models if model.speculative is not None}
    if not drafts:
        return
    from paceline.config import SpeculativeConfig
    from paceline.drafters.registry import check_drafter

    for name, wanted in drafts.items():
        try:
            check_drafter(SpeculativeConfig.of(wanted))
        except InvalidParameter as error:
            raise error.about(f"speculative of model {name!r}") from None


@grouped
def place(*, given: c.ScaledCase, search: Search, asked: Asked) -> None:
    """Say where to put which model, how to split it, and what share of requests will meet their deadline.

    A search fits its plan to the arrivals it sees; so the same search is run on the first half of them too, and what it
    found is played against the second half.

    Ctrl-C ends the search and prints the best plan so far.

    Examples:

        paceline place --case case.yaml

        paceline place --case case.json --policy mp-search --json

        paceline place --case case.yaml --policy mp-beam --beam-width 4

        paceline place --case case.yaml --reach 0.99 --price 2.5

        paceline place --case case.yaml --explain --plot interference.png

        paceline place --case case.yaml --batch-sizes 1,2,4,8 --overhead 0 --stage-overhead 0

        paceline place --case case.yaml --num-devices 16 --slo-scale 0.5 --time-budget 10 --output plan.json

        paceline place --profiles p.yaml --num-devices 8 --mem-budget 13e9 --duration 600 --model "small rate=2 slo=0.5"
    """
    c.check_outputs(asked.output, asked.plot)
    case = given.load(search.seed)
    asked.check(case)
    found = _find(case, search, asked)
    record = _record(found, asked)
    if asked.output is not None:
        asked.output.write_text(record + "\n")
    if asked.plot is not None:
        _draw(found, asked.plot)
    if asked.as_json:
        print(record)
        return
    _show(found, asked.price, told_cost=search.reach is not None)


def _find(case: "Case", search: Search, asked: Asked) -> _Found:
    with _progress() as progress:
        options = {name: getattr(search, name) for name in ("effort", "beam_width", "window", "allow_unplaceable")}
        options |= {"seed": search.seed or 0, "time_budget": search.seconds, "progress": progress}
        made, tried = _planned(case, search.policy, search.reach, options)
    return _Found(
        made,
        tried,
        _held_out(made.case, made.plan, search) if asked.held else None,
        _explained(made.case, made.plan) if asked.why else None,
        None if asked.pools is None else _separate_roles(made.case, asked.pools),
    )


def _record(found: _Found, asked: Asked) -> str:
    """Everything as one JSON object."""
    from paceline.cli.terminal import plans as show

    case, plan = found.made.case, found.made.plan
    record = show.plan_record(case, plan) | show.drafts_record(found.made)
    record |= {} if found.explanation is None else {"explanation": found.explanation.to_record()}
    record |= {} if found.honest is None else show.honest_record(*found.honest)
    record |= {} if found.apart is None else show.roles_record(found.apart)
    return json.dumps(record | show.cost_record(case.cluster, asked.price, found.tried))


def _draw(found: _Found, path: Path) -> None:
    from paceline.cli.terminal.explanations import interference_map
    from paceline.cli.terminal.plans import search_chart
    from paceline.theory.plots import draw

    explained = found.explanation
    draw(search_chart(found.made.plan) if explained is None else interference_map(explained.interference), path)


def _show(found: _Found, price: float | None, told_cost: bool) -> None:
    """Tables and sentences."""
    from paceline.cli.terminal import plans as show
    from paceline.cli.terminal.explanations import explanation_tables

    case, plan = found.made.case, found.made.plan
    if found.made.places:
        show_table(show.drafts_table(found.made), standard_output)
    show_table(show.group_table(case, plan.placement, plan.result), standard_output)
    show_table(show.model_table(case, plan.placement, plan.result), standard_output)
    explained = [] if found.explanation is None else list(explanation_tables(found.explanation))
    for table in explained:
        show_table(table, standard_output)
    if found.explanation is not None and not explained:
        print("no models share a group, so none costs another anything")
    print(show.summary(plan))
    if batches := show.batches_summary(case):
        print(batches)
    if told_cost or price is not None or case.cluster.price:
        print(show.cost_summary(case.cluster, price, found.tried))
    if found.apart is not None:
        print(show.roles_summary(found.apart, plan.slo_attainment))
    if found.honest is not None:
        print(show.honest_summary(*found.honest))


def _planned(
    case: "Case", policy: str, reach: float | None, options: dict[str, Any]
) -> "tuple[CoPlan, Mapping[int, float] | Mapping[str, float]]":
    """(plan on all devices or, with `reach`, on the fewest that reach it; attainment by devices tried).

    With several types of devices, `reach` takes the cheapest ones."""
    from paceline.placement.coplacement import coplan
    from paceline.placement.search.fewest import cheapest_types, fewest_devices

    if reach is None:
        return coplan(case, policy, **options), {}

    def planned(smaller: "Case") -> "tuple[float, CoPlan]":
        found = coplan(smaller, policy, **options)
        return found.plan.slo_attainment, found

    fewest = (cheapest_types if case.cluster.types else fewest_devices)(case, reach, planned)
    return fewest.found, fewest.tried


def _held_out(case: "Case", made: "Plan", search: Search) -> "tuple[HeldOut, tuple[float, float]] | None":
    """(search on half of the arrivals, confidence interval of the plan's attainment); None if impossible.

    None too for a plan searched on windows of a long trace, which has their error instead, from mostly unseen arrivals.
    """
    from paceline.placement.search.honest import confidence, held_out

    if made.windows or made.sample is not None:
        return None
    half = None if search.seconds is None else search.seconds / 2
    with messages.status("planning on one half of the arrivals, judging on the other"):
        try:
            found = held_out(case, made.policy, time_budget=half, effort=search.effort, seed=search.seed or 0,
                             beam_width=search.beam_width, allow_unplaceable=search.allow_unplaceable)  # fmt: skip
        except InvalidParameter:  # no requests in one half, or for no model that could be served
            return None
        return found, confidence(case, made.placement, search.seed or 0)


def _separate_roles(case: "Case", gigabytes: float) -> "SeparateRoles":
    from paceline.placement.search.disaggregated import separate_roles

    with messages.status("sharing the devices out between reading and generating"):
        return separate_roles(case, 1e9 * gigabytes)


def _explained(case: "Case", made: "Plan") -> "Explanation":
    """The explanation of the plan. Raises InvalidParameter for one with several placements."""
    from paceline.placement.explain import explain

    if made.windows:
        remedy = "explain the plan of another policy"
        raise InvalidParameter("explain", f"{made.policy} has a placement for each window", remedy)
    with progress_bars() as progress:
        return explain(case, made.placement, lambda done, total: progress("explaining", done, total))


@contextmanager
def _progress():
    """A bar on standard error that shows how far the search is and the best attainment so far."""
    with progress_bars() as progress:
        bar = TitledBar(progress)
        yield lambda share, best: bar(f"planning, best {best:.2%}", int(1000 * share), 1000)
