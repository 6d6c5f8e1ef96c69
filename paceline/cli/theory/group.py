"""`paceline theory`: what the closed forms say, as tables, a prediction or a plot. Loads no model.

Not the place for measured numbers, which `paceline bench` makes.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table as RichTable

from paceline.cli.terminal.streams import output, show_table
from paceline.cli.theory import intensity as theory_intensity
from paceline.cli.theory.long_context import EXAMPLES, long_context
from paceline.cli.theory.output import MOST_LEVELS, AsJson, check_most, examples, print_json, print_table, usage_errors
from paceline.errors import InvalidParameter
from paceline.theory.acceptance import acceptance_rate_for, expected_tokens
from paceline.theory.checks import check_cost
from paceline.theory.curves import CURVES
from paceline.theory.distributed_draft import (
    CHINCHILLA,
    TENSOR_PARALLEL_SIZES,
    TPU_V4,
    WIDE_DRAFT,
    Chip,
    ModelSize,
    draft_plan,
    latency_curves,
    plans_table,
)
from paceline.theory.grid import Grid
from paceline.theory.plots import draw
from paceline.theory.speedup import (
    best_measured_length,
    measured_speedup,
    oracle_speedup,
)
from paceline.theory.tables import TABLES
from paceline.theory.two_models import CHARTS, two_models, two_models_table

_LONGEST = 10_000
"""Longest draft that is predicted; sums over its levels take a millisecond."""

Built = TypeVar("Built")

app = typer.Typer(help="What the closed forms say: tables, predictions, plots.", no_args_is_help=True)

Alphas = Annotated[list[float] | None, typer.Option("--alpha", "-a", help="Acceptance rate; repeat for several.")]
Costs = Annotated[list[float] | None, typer.Option("--cost-ratio", "-c", help="Draft step / target pass; repeatable.")]
Longest = Annotated[int, typer.Option("--max-length", help="Longest speculation length shown.")]


@app.command(
    epilog=examples(
        "table",
        "table best-length -c 0.02 -c 0.1",
        "table speed-up -a 0.6 -a 0.8 -c 0.05 --json",
    )
)
def table(
    name: Annotated[str | None, typer.Argument(help=f"One of {', '.join(TABLES)}; all of them when left out.")] = None,
    alpha: Alphas = None,
    cost_ratio: Costs = None,
    max_length: Longest = 8,
    as_json: AsJson = False,
) -> None:
    """Print expected tokens, speed-up, best length and arithmetic by acceptance rate and speculation length."""
    with usage_errors():
        grid = _grid(alpha, cost_ratio, max_length)
        builders = [_named(name, TABLES)] if name else TABLES.values()
        tables = [build(grid) for build in builders]
    if as_json:
        print_json([asdict(each) for each in tables])
        return
    for each in tables:
        print_table(each)


@app.command(
    epilog=examples(
        "predict --alpha 0.7 --cost-ratio 0.05",
        "predict --acceptance-length 2.8 -k 4 --cost-ratio 0.05",
        "predict --alpha 0.6 --cost-ratio 0 --row-cost 0.03 -k 4 --json",
    )
)
def predict(
    cost_ratio: Annotated[float, typer.Option("--cost-ratio", "-c", help="Draft step / target pass of one row.")],
    alpha: Annotated[float | None, typer.Option("--alpha", "-a", help="Acceptance rate.")] = None,
    acceptance_length: Annotated[
        float | None,
        typer.Option("--acceptance-length", help="Measured tokens per pass, instead of --alpha; needs -k."),
    ] = None,
    length: Annotated[int | None, typer.Option("-k", help="Speculation length; the best one when left out.")] = None,
    row_cost: Annotated[
        float, typer.Option("--row-cost", help="What each further row adds to a target pass, as a share of one row's.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Predict the speed-up from an acceptance rate (or measured acceptance length) and what a draft costs."""
    with usage_errors():
        rate = _rate(alpha, acceptance_length, length)
        prediction = _predict(rate, cost_ratio, row_cost, length)
    if as_json:
        print_json(prediction)
        return
    typer.echo(prediction.pop("verdict"))
    lines = RichTable(show_header=False)
    for key, value in prediction.items():
        if value is not None:
            lines.add_row(key.replace("_", " "), f"{value:.4g}")
    show_table(lines, output)


@app.command(epilog=examples("plot speed-up -o speedup.png", "plot best-speed-up -c 0.02 -c 0.1 -o oracle.svg"))
def plot(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(CURVES)}.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .png, .svg or .pdf.")],
    alpha: Alphas = None,
    cost_ratio: Costs = None,
    max_length: Longest = 12,
    as_json: AsJson = False,
) -> None:
    """Draw a named plot into a file (needs the extra named plots); --json prints its points as well."""
    with usage_errors():
        chart = _named(name, CURVES)(_grid(alpha, cost_ratio, max_length))
        path = draw(chart, output)
    if as_json:
        print_json(asdict(chart))
        return
    typer.echo(f"wrote {path}")


@app.command(
    epilog=examples(
        "distributed",
        "distributed --draft-parameters 4e9 --draft-layers 36 --alpha 0.8",
        "distributed --target-parameters 8e9 --target-layers 32 --target-size 2 --bandwidth 3.35e12 --peak 990e12",
        "distributed -o latency.png",
    )
)
def distributed(
    draft_parameters: Annotated[float, typer.Option(help="Of the draft.")] = WIDE_DRAFT.num_parameters,
    draft_layers: Annotated[int, typer.Option(help="Depth of the draft.")] = WIDE_DRAFT.num_layers,
    target_parameters: Annotated[float, typer.Option(help="Of the target.")] = CHINCHILLA.num_parameters,
    target_layers: Annotated[int, typer.Option(help="Depth of the target.")] = CHINCHILLA.num_layers,
    target_size: Annotated[int, typer.Option(help="Chips the target runs on.")] = max(TENSOR_PARALLEL_SIZES),
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Acceptance rate.")] = 0.8,
    bandwidth: Annotated[float, typer.Option(help="Bytes per second of one chip's memory.")] = TPU_V4.bandwidth,
    peak: Annotated[float, typer.Option(help="Operations per second of one chip.")] = TPU_V4.peak,
    hop: Annotated[float, typer.Option(help="Seconds of one exchange between chips.")] = TPU_V4.hop_seconds,
    hand_over: Annotated[float, typer.Option(help="Seconds to send a draft to the target's chips.")] = 0.0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Plot latencies: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say on how many chips a draft model should run beside a tensor-parallel target.

    Two bytes per parameter. The defaults are the pair of Chen et al. 2023 on 16 TPU v4.
    """
    with usage_errors():
        chip = Chip(bandwidth, peak, hop)
        draft, target = ModelSize(draft_parameters, draft_layers), ModelSize(target_parameters, target_layers)
        sizes = sorted({size for size in TENSOR_PARALLEL_SIZES if size < target_size} | {target_size})
        plans = [draft_plan(draft, target, chip, size, target_size, alpha, hand_over) for size in sizes]
        if output is not None:
            draw(latency_curves({"draft": draft, "target": target}, chip, sizes), output)
    best = max(plans, key=lambda plan: plan.speedup)
    if as_json:
        print_json({"plans": [asdict(plan) for plan in plans], "best": asdict(best)})
        return
    print_table(plans_table(plans))
    chips = "chip" if best.tensor_parallel_size == 1 else "chips"
    gain = f"{best.speedup:.2f} times plain decoding with {best.num_draft_tokens} drafted tokens"
    typer.echo(f"run the draft on {best.tensor_parallel_size} {chips}: {gain}" if best.speedup > 1 else "do not draft")


@app.command(
    epilog=examples(
        "parallel",
        "parallel --rate 3 --seconds 0.395",
        "parallel --rate 3 --seconds 0.395 --share 0.2 --communication 1.05 --json",
        "parallel --plot overheads -o overheads.png",
    )
)
def parallel(
    rate: Annotated[float | None, typer.Option(help="Requests per second for both models; with --seconds.")] = None,
    seconds: Annotated[float | None, typer.Option(help="A pass of either model on one device.")] = None,
    share: Annotated[float, typer.Option(help="Of the requests, those for the first model.")] = 0.5,
    communication: Annotated[float, typer.Option(help="All stages together over the pass, 1 or more.")] = 1.0,
    uneven: Annotated[float, typer.Option(help="The slowest stage over half of the work, 1 to 2.")] = 1.0,
    plot: Annotated[str, typer.Option("--plot", help=f"What -o draws: {' or '.join(CHARTS)}.")] = "overheads",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Plot here: .png, .svg or .pdf.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say when two models should share a pipeline of two devices instead of having one each.

    Without --rate and --seconds a table over the load (requests per pass): the overheads that model parallelism may
    have before it no longer pays, and mean latencies in passes.
    """
    with usage_errors():
        if (rate is None) != (seconds is None):
            raise typer.BadParameter("--rate and --seconds go together")
        if output is not None:
            draw(_named(plot, CHARTS)(), output)
        found = None if rate is None or seconds is None else two_models(rate, seconds, share, communication, uneven)
        shown = two_models_table(share=share)
    if as_json:
        print_json(asdict(shown if found is None else found))
    elif found is None:
        print_table(shown)
    else:
        better = "share a pipeline" if found.gain > 1 else "keep a device each"
        typer.echo(
            f"{better}: mean latency {found.apart:.4g} s apart, {found.together:.4g} s together ({found.gain:.2f}x)"
        )


app.command("long-context", epilog=EXAMPLES)(long_context)
app.command(epilog=theory_intensity.EXAMPLES)(theory_intensity.intensity)


def _named(name: str, known: dict[str, Built]) -> Built:
    """The entry named `name`."""
    if name not in known:
        raise InvalidParameter("name", f"there is no {name!r}", f"use one of {', '.join(known)}")
    return known[name]


def _grid(alpha: list[float] | None, cost_ratio: list[float] | None, max_length: int) -> Grid:
    """The grid of the options given; what is left out keeps the grid's own default."""
    check_most("max_length", max_length, MOST_LEVELS)
    given: dict[str, Any] = {"alphas": alpha, "cost_ratios": cost_ratio}
    return Grid(max_length=max_length, **{key: tuple(value) for key, value in given.items() if value})


def _rate(alpha: float | None, acceptance_length: float | None, length: int | None) -> float:
    """The acceptance rate, given or solved from a measured acceptance length."""
    if length is not None:
        check_most("k", length, _LONGEST)
    if (alpha is None) == (acceptance_length is None):
        raise typer.BadParameter("give either --alpha or --acceptance-length")
    if alpha is not None:
        return alpha
    if length is None or acceptance_length is None:
        raise typer.BadParameter("--acceptance-length needs -k, the speculation length it was measured with")
    return acceptance_rate_for(acceptance_length, length)


def _predict(alpha: float, cost_ratio: float, row_cost: float, length: int | None) -> dict[str, Any]:
    """The prediction of the measured form with t(M) = 1 + row_cost (M - 1), in units of a plain target pass."""
    check_cost("row_cost", row_cost)

    def passes(rows: int) -> float:
        return 1.0 + row_cost * (rows - 1)

    best = best_measured_length(alpha, passes, cost_ratio)
    chosen = best.num_draft_tokens if length is None else length
    tokens = expected_tokens(alpha, chosen)
    speedup = float(measured_speedup(tokens, chosen, passes, cost_ratio))
    cost = chosen * cost_ratio + passes(chosen + 1)
    return {
        "verdict": _verdict(speedup, float(best.speedup)),
        "alpha": alpha,
        "length": chosen,
        "speedup": speedup,
        "tokens_per_pass": float(tokens),
        "cost_per_pass": cost,
        "break_even_alpha": acceptance_rate_for(cost, chosen) if chosen and cost <= chosen + 1 else None,
        "best_length": best.num_draft_tokens,
        "best_speedup": float(best.speedup),
        "oracle_speedup": float(oracle_speedup(alpha, cost_ratio + row_cost)),
    }


def _verdict(speedup: float, best_speedup: float) -> str:
    """Whether to speculate, in words."""
    if speedup > 1:
        return "speculation pays"
    return "this length does not pay, the best one does" if best_speedup > 1 else "speculation does not pay"
