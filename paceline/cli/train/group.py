"""`paceline train`: small parts that learn from your own model and prompts."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.model_argument import model_by_position
from paceline.cli.options.prompts import prompt_ids, read_prompts
from paceline.cli.terminal.streams import output as standard_output
from paceline.cli.terminal.streams import progress_bars, show_table
from paceline.cli.train.draft import draft
from paceline.cli.train.head import head
from paceline.cli.train.joint import joint
from paceline.cli.train.memory import memory
from paceline.extras import check_torch
from paceline.types import SamplingParams

app = typer.Typer(help="Train small parts on your own model and prompts.", no_args_is_help=True)
for command in (head, draft, joint, memory):
    app.command()(model_by_position(command))


@app.callback()
def group() -> None:
    """Train small parts on your own model and prompts."""


@app.command()
@model_by_position
def disco(
    prompts: Annotated[Path, typer.Option("--prompts", help="Text file, a prompt per line, or .jsonl with `prompt`.")],
    draft_model: Annotated[str, typer.Option("--draft-model", help="Smaller model of the same vocabulary.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the classifier goes (JSON).")],
    model: o.Model = o.DEFAULT_MODEL,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", min=2, help="Length of the drafts.")] = 8,
    hidden: Annotated[int, typer.Option("--hidden", min=0, help="Hidden units; 0 is a logistic regression.")] = 8,
    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS,
    temperature: o.Temperature = o.DEFAULT_TEMPERATURE,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Most prompts.")] = None,
    raw: o.Raw = False,
    seed: Annotated[int, typer.Option("--seed", help="Of sampling and of the classifier's start.")] = 0,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    as_json: o.Json = False,
) -> None:
    """Learn when a draft model should stop drafting, from what became of its drafts on your prompts.

    Use the result with --policy disco --policy-option classifier=FILE. Takes about as long as the model takes to answer
    the prompts: --limit and --max-tokens bound it.

    Examples:

        paceline train disco --prompts prompts.txt -m target.gguf --draft-model small.gguf -o disco.json

        paceline generate -m target.gguf -d draft_model --draft-model small.gguf --policy disco --policy-option \
classifier=disco.json --compare "def fibonacci(n):"
    """
    check_torch("train disco")
    from paceline.config import EngineConfig, SpeculativeConfig
    from paceline.disk import check_file, writing
    from paceline.engine.setup.build import build_engine
    from paceline.engine.setup.load import load
    from paceline.speculation import BatchStats
    from paceline.speculation.best_draft import step_seconds
    from paceline.training.disco import train
    from paceline.training_jobs.draft_traces import collect_traces

    check_file("output", output)
    config = EngineConfig(dtype=dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    spec = SpeculativeConfig("draft_model", num_draft_tokens, draft_model, policy="fixed")
    texts = read_prompts(prompts)[:limit]
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    with progress_bars() as progress:
        loaded = load(model, config, progress)
        engine = build_engine(loaded, config, spec, progress)
        tokens = [prompt_ids(loaded.source.tokenizer, text, raw) for text in texts]
        traces = collect_traces(engine, tokens, params, lambda done, total: progress("decoding", done, total))
        classifier, reports = train(traces, partial(step_seconds, engine.prices, BatchStats()), hidden, seed)
    about = f"{model} drafted by {draft_model}, {dtype}, {len(texts)} prompts, temperature {temperature:g}"
    with writing("output", output):
        replace(classifier, about=about).write(output)
    record = {"output": str(output), "threshold": classifier.threshold, "num_traces": len(traces)}
    if as_json:
        parts = {"trained": asdict(reports.trained), "chosen": asdict(reports.chosen)}
        print(json.dumps({**record, **asdict(reports.held_out), **parts}))
        return
    table = Table("drafts", "fitted on", "threshold chosen on", "held out", title=about, title_justify="left")
    columns = [asdict(part) for part in (reports.trained, reports.chosen, reports.held_out)]
    for name in columns[0]:
        table.add_row(name.replace("_", " "), *(_shown(column[name]) for column in columns))
    show_table(table, standard_output)
    worth = reports.held_out
    gain = worth.disco_rate / worth.fixed_rate if worth.fixed_rate else float("nan")
    print(f"On held-out drafts: {gain:.2f} times the rate of the best fixed length ({worth.fixed_length}).")


def _shown(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
