"""`paceline tune`: measures what a pass costs here, keeps it for the engine, and chooses a token budget."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.terminal.streams import number_of, show_table, telling_end
from paceline.cli.terminal.streams import output as standard_output
from paceline.disk import check_file, writing
from paceline.errors import InvalidParameter
from paceline.scheduling.budget import BudgetChoice, choose_budget, trade_off
from paceline.scheduling.profile import Profile


def tune(
    model: o.Model = o.DEFAULT_MODEL,
    draft_model: Annotated[str | None, typer.Option("--draft-model", help="Measure this draft model too.")] = None,
    target_ms: Annotated[
        float | None, typer.Option("--target-ms", help="Longest time between tokens while prompts are read.")
    ] = None,
    num_decodes: Annotated[int, typer.Option("--num-decodes", help="Requests that decode beside a chunk.")] = 8,
    context: Annotated[int, typer.Option("--context", help="Tokens before them, for the choice.")] = 256,
    rows: Annotated[list[int] | None, typer.Option("--rows", help="Rows of a pass to measure; repeatable.")] = None,
    contexts: Annotated[
        list[int] | None, typer.Option("--measure-context", help="Tokens before the rows to measure; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Passes per point; the median counts.")] = 15,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not into the cache.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the trade-off (.png, .svg or .pdf).")] = None,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    as_json: o.Json = False,
) -> None:
    """Measure the time of a pass by its rows and context, and choose how many rows a step may have.

    The profile is kept in the cache, where every later run of this model on this machine finds it: draft lengths follow
    what a pass really costs, and steps are as long as the target allows. Run it while nothing else runs. Takes about
    three minutes for the default model on two cores; --draft-model is measured after it.

    Examples:

        paceline tune

        paceline tune --target-ms 100 --plot tradeoff.png

        paceline tune --model target.gguf --draft-model small.gguf --dtype int8

        paceline tune --rows 1 --rows 8 --rows 64 --measure-context 128 --output profile.json --json
    """
    from paceline.config import EngineConfig
    from paceline.engine.setup.profiles import profile_path
    from paceline.evaluation.tune import CONTEXTS, ROWS, TunePlan
    from paceline.models.resolve import resolve_model

    plan = TunePlan(sorted(rows or ROWS), sorted(contexts or CONTEXTS), rounds)
    _check_choice(plan.rows, num_decodes, context, target_ms)
    _check_files(output, plot)
    config = EngineConfig(dtype=dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    if draft_model:
        resolve_model(draft_model)  # a name that is none is said before the target is measured
    with telling_end("ended before everything was measured; nothing is written"):
        loaded, profile = _profile_of(model, config, plan, target_ms)
    path = output or profile_path(loaded, dtype)
    with writing("output", path):
        profile.write(path)  # what was measured stays, whatever is wrong with what was asked of it
    choices = trade_off(profile.prefill_cost, sorted(profile.prefill_cost.rows), num_decodes, context)
    choice = choose_budget(choices, None if target_ms is None else target_ms / 1000)
    profile = profile.with_choice(choice.token_budget, choice.chunk, num_decodes, target_ms)
    profile.write(path)
    if draft_model:
        with telling_end(f"ended; the profile of {model} is kept ({path}), that of {draft_model} is not written"):
            draft, its_profile = _profile_of(draft_model, config, plan)
        its_profile.write(profile_path(draft, dtype))
    if plot:
        _draw(plot, profile, choices, choice, context)
    if as_json:
        print(json.dumps(profile.as_dict()))
        return
    show_table(_cost_table(profile), standard_output)
    show_table(_choice_table(choices, choice, num_decodes, context), standard_output)
    print(_verdict(profile))
    print(_batches(profile))
    print(f"profile: {path}")


def _check_choice(rows: Sequence[int], num_decodes: int, context: int, target_ms: float | None) -> None:
    """Raise InvalidParameter for what can be said before minutes of measurement: no budget of `rows` can be chosen."""
    if context < 0:
        raise InvalidParameter("context", f"{context} is less than 0", "give the tokens before the rows")
    choices = trade_off(lambda rows, context: 1.0, rows, num_decodes, context)
    choose_budget(choices, None if target_ms is None or target_ms > 0 else target_ms / 1000)


def _check_files(output: Path | None, plot: Path | None) -> None:
    """Raise InvalidParameter for a file that cannot be written or drawn."""
    from paceline.theory.plots import check_drawable

    if plot is not None:
        check_drawable(plot, "plot")
    if output is not None:
        check_file("output", output)


def _verdict(profile: Profile) -> str:
    """A line on what the costs mean for drafting: the number of rows that a pass takes within 10 % more time."""
    context = min(profile.seconds)
    rows = sorted(profile.seconds[context])
    one = profile.cost(1, context)
    cheap = max((m for m in rows if profile.cost(m, context) <= 1.1 * one), default=1)
    if cheap < 2:
        return (
            "Every drafted token costs here: a pass of 2 rows takes over 1.1 times one of 1, so only sure drafts pay."
        )
    checked = number_of(cheap - 1, "drafted token")
    return (
        f"Drafting is cheap here: a pass that checks {checked} takes at most 1.1 times a plain one, "
        "so it pays where one in ten passes gains a token."
    )


def _batches(profile: Profile) -> str:
    """A line on the other costs: further requests, overhead of a step, and the tile of rows."""
    tile = f"Passes take a step up every {profile.tile} rows." if profile.tile else "Passes have no tile of rows."
    context = max(profile.segment_seconds)
    return (
        f"Each further request in a pass adds {1000 * profile.segment_seconds[context]:.2f} ms at {context} tokens of "
        f"context; a step takes {1000 * (profile.step_overhead or 0):.2f} ms besides its pass. {tile}"
    )


def _profile_of(model: str, config, plan, target_ms: float | None = None):
    """The loaded model and its profile, measured under progress bars; a target that no pass meets is refused."""
    from paceline.engine.setup.load import load
    from paceline.evaluation.tune import fastest_pass, profile_model

    with o.progress_bars() as progress:
        loaded = load(model, config, progress)
        if target_ms is not None and target_ms < (fastest := 1000 * fastest_pass(loaded.model)) / 2:
            problem = f"{target_ms:g} ms, and a pass of one row alone takes {fastest:.2f} ms"
            raise InvalidParameter("target_ms", problem, "allow more, or use a smaller model, int8 or more threads")
        return loaded, profile_model(loaded, config, plan, progress)


def _cost_table(profile: Profile) -> Table:
    contexts = sorted(profile.seconds)
    table = Table("rows", *(f"ms after {c}" for c in contexts), "t(M) / t(1)", "ms, prompt chunk", title_justify="left")
    table.title = f"A pass of {profile.model}, {profile.dtype}, {profile.threads or '?'} threads"
    cost, prefill = profile.cost, profile.prefill_cost
    for rows in sorted(profile.seconds[contexts[0]]):
        times = [1000 * profile.seconds[c][rows] for c in contexts]
        ratio = cost(rows, contexts[0]) / cost(1, contexts[0])
        chunk = f"{1000 * prefill(rows, contexts[0]):.1f}" if rows in prefill.rows else ""
        table.add_row(str(rows), *(f"{t:.1f}" for t in times), f"{ratio:.2f}", chunk)
    return table


def _choice_table(choices: list[BudgetChoice], chosen: BudgetChoice, num_decodes: int, context: int) -> Table:
    table = Table("token budget", "chunk", "ms between tokens", "prompt tokens/s", "of the best", "")
    table.title = f"Steps with {num_decodes} decodes after {context} tokens"
    for one in choices:
        mark = "chosen" if one == chosen else ""
        numbers = f"{1000 * one.seconds:.1f}", f"{one.prefill_rate:.0f}", f"{100 * one.share:.0f} %"
        table.add_row(str(one.token_budget), str(one.chunk), *numbers, mark)
    return table


def _draw(path: Path, profile: Profile, choices: list[BudgetChoice], chosen: BudgetChoice, context: int) -> None:
    from paceline.theory.curves import Chart, Series
    from paceline.theory.plots import draw

    title = f"{profile.model}, {profile.dtype}: prompt speed against time between tokens"
    x, y = [1000 * c.seconds for c in choices], [c.prefill_rate for c in choices]
    series = Series(f"budgets {choices[0].token_budget} to {choices[-1].token_budget}, chosen {chosen.token_budget}",
                    x, y, marked=[choices.index(chosen)])  # fmt: skip
    chart = Chart(title, f"milliseconds between tokens, context {context}", "prompt tokens/s", (series,), discrete=True)
    draw(chart, path)
