"""`paceline capacity`: the largest rate of requests within P99 promises on tokens, by token budget."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.terminal.streams import output as standard_output
from paceline.cli.terminal.streams import progress_bars, show_table
from paceline.errors import InvalidParameter


def capacity(
    tuned: Annotated[Path, typer.Argument(help="A profile of `paceline tune --output`.")],
    between_ms: Annotated[float, typer.Option("--between-ms", help="Most milliseconds between tokens, at P99.")],
    first_ms: Annotated[float, typer.Option("--first-ms", help="Most milliseconds to the first token, at P99.")],
    prompt_tokens: Annotated[float, typer.Option("--prompt-tokens", help="Of a request, on average.")] = 512,
    output_tokens: Annotated[float, typer.Option("--output-tokens", help="Of an answer, on average.")] = 128,
    length_cv: Annotated[float, typer.Option("--length-cv", help="Coefficient of variation of both.")] = 0.0,
    quantile: Annotated[float, typer.Option("--quantile", help="Of the requests, or of the gaps.")] = 0.99,
    token_budget: Annotated[
        list[int] | None, typer.Option("--token-budget", help="Rows of a step to try; repeatable.")
    ] = None,
    seats: Annotated[int, typer.Option("--seats", help="Requests at once.")] = 64,
    kv_tokens: Annotated[
        int | None,
        typer.Option("--kv-tokens", help="Tokens that the memory for keys and values holds; enough for every seat."),
    ] = None,
    num_requests: Annotated[int, typer.Option("--num-requests", help="That every rate is tried with.")] = 500,
    seed: Annotated[int, typer.Option("--seed", help="Of the arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Find the most requests per second that one engine serves within P99 limits, for every token budget.

    Small budgets keep tokens coming while prompts are read, large ones read prompts faster (Sarathi-Serve, Agrawal et
    al. 2024). The engine's own scheduler is played, with all measured times: those that the planner counts. Takes
    about four minutes on one core, less with fewer --num-requests or with --token-budget.

    Examples:

        paceline tune --output tuned.json

        paceline capacity tuned.json --between-ms 100 --first-ms 2000 --prompt-tokens 512 --output-tokens 64
    """
    from paceline.placement.capacity import Promise, Traffic, capacities, engine_for
    from paceline.placement.tokens import TokenProfile
    from paceline.scheduling.profile import Profile

    for name, value in (("between_ms", between_ms), ("first_ms", first_ms)):
        if not value > 0:
            raise InvalidParameter(name, f"{value:g} is not above 0", "give milliseconds")
    profile = Profile.read(tuned)
    budgets = sorted(token_budget or [32, 64, 128, 256, 512])
    traffic = Traffic(prompt_tokens, output_tokens, length_cv, num_requests, seed)
    promise = Promise(between_ms / 1000, first_ms / 1000, quantile)
    memory = {} if kv_tokens is None else {"kv_tokens": kv_tokens}
    model = engine_for(traffic, TokenProfile.of_tuned(profile, seats=seats, **memory))
    with progress_bars() as progress:
        found = capacities(model, traffic, promise, budgets, lambda done, total: progress("simulating", done, total))
    best = max(found, key=lambda each: each.rate)
    if as_json:
        plain = [{name: None if value != value else value for name, value in asdict(each).items()} for each in found]
        print(json.dumps({"model": profile.model, "capacities": plain, "best_token_budget": best.token_budget}))
        return
    table = Table("token budget", "requests/s", "ms between tokens", "ms to the first", "tokens/s")
    table.title, table.title_justify = f"{profile.model}: the most at P{100 * quantile:g} within limits", "left"
    for each in found:
        numbers = each.rate, 1000 * each.between, 1000 * each.first, each.throughput
        table.add_row(str(each.token_budget), *("-" if value != value else f"{value:.4g}" for value in numbers))
    show_table(table, standard_output)
    if best.rate:
        print(f"{best.rate:.3g} requests per second with a token budget of {best.token_budget}")
    else:
        print("even a lone request breaks these limits at every budget")
