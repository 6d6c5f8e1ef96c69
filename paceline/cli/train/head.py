"""`paceline train head`: a draft head for your own model, from nothing but the model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import model as o
from paceline.cli.options.groups import grouped
from paceline.cli.options.prompts import read_text
from paceline.cli.terminal.streams import messages
from paceline.cli.train import options as t
from paceline.cli.train.command_line import command_line
from paceline.errors import InvalidParameter

_RATE, _RESUMED_RATE = 2e-3, 2e-4
"""Default peak learning rates: for a new head, and for a resumed one."""


@grouped
def head(
    family: Annotated[
        str,
        typer.Argument(
            help="eagle3, dspark, mlp_speculator, medusa, blockwise, eagle, hass, falcon, p_eagle, or eagle3_one_norm "
            "(for llama.cpp and SGLang)."
        ),
    ],
    *,
    context: typer.Context,
    run: t.TrainingRun,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the head [cache].")] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option("--num-draft-tokens", "-k", help="Length of the drafts [3].")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, typer.Option("--draft-vocabulary", help="Most tokens the head can name [8192].")
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", help="Ordinary text to begin with, for 70 % of the updates.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Head to go on with, by name or folder, at a tenth of the rate.")
    ] = None,
    served: Annotated[
        Path | None, typer.Option("--served", help="With --resume: learn from what serve --keep-served kept there.")
    ] = None,
    device: o.Device = "cpu",
    release: Annotated[bool, typer.Option("--release", help="Save 8-bit weights, which only paceline reads.")] = False,
) -> None:
    """Train a draft head: the model writes its own text, then the head learns to say what it would say next.

    Takes about as long as --time-budget says, an hour unless given. Ended runs go on where they were: start the same
    command again. The first part writes text, for 40 % of the time, and one round of some minutes at least; further
    heads for the same model use the same text. Tokens per pass on held-out text (EAL) are shown as training goes on.

    Examples:

        paceline train head eagle3 -m smollm2-135m --time-budget 60m -o my-head

        paceline generate -d head --draft-model my-head "Why is the sky blue?"

        paceline train head mlp_speculator --text book.txt -o my-speculator

        paceline train head medusa -k 4 --time-budget 20m -o my-medusa

        paceline train head blockwise -k 4 --time-budget 20m -o my-blockwise

        paceline train head eagle --time-budget 60m -o my-eagle

        paceline train head hass --time-budget 90m -o my-hass

        paceline train head dspark -k 6 --time-budget 60m -o my-dspark

        paceline train head falcon -k 4 --time-budget 60m -o my-falcon

        paceline train head p_eagle -k 4 --time-budget 60m -o my-p-eagle

        paceline train head eagle3_one_norm --time-budget 60m -o for-llama-cpp

        paceline train head eagle3 --answers log.jsonl --tokens 300000 -o my-head

        paceline train head eagle3 -m Qwen/Qwen2.5-1.5B-Instruct --device cuda --time-budget 20m -o my-head

        paceline train head eagle3 --resume my-head --served served/ --time-budget 10m -o my-head-2
    """
    from paceline.disk import writing
    from paceline.models.cache_dir import cache_dir
    from paceline.training_jobs.head import HeadJob, save_trained, train_head

    long_text = _long_text(run.model, text)
    loop = run.loop(_RATE if resume is None else _RESUMED_RATE)
    job = HeadJob(
        family, run.text(), loop, num_draft_tokens, draft_vocabulary, long_text, resume, served, command_line(context)
    )
    folder = t.check_places(output or cache_dir() / "heads" / t.slug(run.model) / family, run.plot)
    with t.training_bars() as progress:
        record, done = train_head(job, run.config_on(device), progress, t.TrainingBar(progress), t.remark)
    with writing("output", folder):
        save_trained(record, folder, release)
    if run.plot is not None:
        t.draw_curve(done, family, run.plot)
    if run.as_json:
        print(json.dumps({"output": str(folder), **asdict(done)}))
        return
    sampled = t.figure((done.best or {}).get("sampled_eal", 0))
    greedy = t.greedy_figure(done.best)
    messages.print(f"{folder}: {greedy}, {sampled} expected at temperature 1; {t.updates(done)}")


def _long_text(model: str, path: Path | None) -> list[int]:
    """Token ids of the text in a file; empty without a file. Raises InvalidParameter for a file without text."""
    from paceline.models.resolve import resolve_model

    if path is None:
        return []
    text = read_text("text", path)
    if not text.strip():
        raise InvalidParameter("text", f"{path} holds no text", "give ordinary text, or leave it out")
    return resolve_model(model).tokenizer.encode(text, False)
