"""`paceline place-map`: when model parallelism pays, as a map over two of memory, rate, CV and SLO."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.options import case as c
from paceline.cli.options.groups import grouped
from paceline.cli.terminal.streams import output as standard_output
from paceline.cli.terminal.streams import progress_bars, show_table
from paceline.errors import InvalidParameter

Factors = Annotated[str | None, typer.Option(metavar="0.5,1,2", help="Factors along this axis.")]


@grouped
def place_map(
    *,
    given: c.GivenCase,
    over: Annotated[str, typer.Option("--over", help="Two of memory, rate, cv, slo: x,y.")] = "rate,cv",
    x: Factors = None,
    y: Factors = None,
    seed: c.Seed = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Plot here: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Compare model parallelism with selective replication while traffic, deadlines or memory are scaled.

    Each cell is the difference in SLO attainment between the best placement whose groups all have several devices and
    the best whose groups all have one. Without a case: four devices, four models of 2.7 billion parameters.

    Examples:

        paceline place-map

        paceline place-map --case case.yaml --over slo,memory -o map.png

        paceline place-map --case case.yaml --over rate,slo --x 0.5,1,2,4 --y 0.5,1,2 --json
    """
    from paceline.placement.parallel_map import FACTORS, example_case, parallel_map, scaled
    from paceline.theory.plots import draw

    c.check_outputs(None, output, "output")
    loaded = example_case(seed=c.check_seed(seed or 0)) if given.is_empty else given.load(seed)
    across, comma, down = (word.strip() for word in over.partition(","))
    if not comma:
        raise InvalidParameter("over", repr(over), "name two axes, e.g. rate,cv")
    axes = across, down
    factors = {}
    for option, axis, text in (("x", across, x), ("y", down, y)):
        if text is not None and axis in FACTORS:
            factors[axis] = _numbers(option, text)
            for factor in factors[axis]:
                with c.blamed_on(option, factor):
                    scaled(loaded, {axis: factor}, seed or 0)
    with progress_bars() as progress:
        found = parallel_map(loaded, axes, factors, seed or 0, lambda done, total: progress("searching", done, total))
    if output is not None:
        draw(found.heat_map(), output)
    if as_json:
        print(json.dumps({"case": loaded.name} | asdict(found) | {"gain": found.gain}))
        return
    table = Table(title=found.table().title, title_justify="left")
    for column in found.table().columns:
        table.add_column(column, justify="right")
    for name, *gains in found.table().rows:
        table.add_row(f"{name:g}", *(f"{gain:+.1f}" for gain in gains))
    show_table(table, standard_output)
    cells = [gain for row in found.gain for gain in row]
    print(f"model parallelism pays in {sum(gain > 0 for gain in cells)} of {len(cells)} cells")


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InvalidParameter(option, f"{text!r}", "give numbers with commas between, e.g. 0.5,1,2") from None
    if not all(0 < factor < float("inf") for factor in found):
        raise InvalidParameter(option, f"{text!r}", "give numbers above 0")
    return found
