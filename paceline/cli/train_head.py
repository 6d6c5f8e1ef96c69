"""`paceline train head`: a draft head for your own model, from nothing but the model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.prompts import prompt_ids, read_prompts, read_text
from paceline.cli.terminal import messages, progress_bars
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.training.heads.loop import Progress
    from paceline.types import NamedProgress

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Seconds of ``90s``, ``60m``, ``1.5h`` or a plain number of seconds. Raises InvalidParameter for others."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise InvalidParameter("time_budget", f"{text!r} is no time", "write 90s, 60m or 1.5h")
    return found


def head(
    family: Annotated[str, typer.Argument(help="eagle3, dspark, mlp_speculator or medusa.")],
    model: o.Model = o.DEFAULT_MODEL,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the head [cache].")] = None,
    time_budget: Annotated[str, typer.Option("--time-budget", help="For text and training: 90s, 60m, 1.5h.")] = "60m",
    tokens: Annotated[int, typer.Option("--tokens", help="Answer tokens to have written, at most.")] = 2_000_000,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Your own prompts to be answered; a line each.")
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option("--exclude", help="Benchmark whose texts (13 words in a row) are kept out.")
    ] = None,
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", help="Length of the drafts.")] = 3,
    draft_vocabulary: Annotated[int, typer.Option("--draft-vocabulary", help="Tokens the head can name.")] = 8192,
    steps: Annotated[int | None, typer.Option("--steps", help="Updates, in place of what the time allows.")] = None,
    work: Annotated[Path | None, typer.Option("--work", help="Folder of text and checkpoints [cache].")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the learning curve (.png, .svg).")] = None,
    release: Annotated[bool, typer.Option("--release", help="Save 8-bit weights, which only paceline reads.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of text, order and start.")] = 0,
    dtype: o.Dtype = "w8a8",
    threads: o.Threads = None,
    as_json: o.Json = False,
) -> None:
    """Train a draft head: the model writes its own text, then the head learns to say what it would say next.

    Ended runs go on where they were: start the same command again. The first part writes text, at most 40 % of the
    time; further heads for the same model use the same text. Tokens per pass on held-out text (EAL) are shown as
    training goes on.

    Examples:

        paceline train head eagle3 -m smollm2-135m --time-budget 60m -o my-head

        paceline generate -d my-head "Why is the sky blue?"
    """
    from paceline.config import EngineConfig
    from paceline.evaluation.head_training import HeadJob, save_trained, train_head
    from paceline.models.cache_dir import cache_dir
    from paceline.models.resolve import resolve_model
    from paceline.training.heads.conversations import ngrams_of
    from paceline.training.heads.loop import LoopSettings

    place = work or cache_dir() / "head-training" / _slug(model)
    given = None
    if prompts is not None:
        tokenizer = resolve_model(model).tokenizer
        given = [prompt_ids(tokenizer, text, False) for text in read_prompts(prompts)]
    benchmark = frozenset(ngrams_of(read_text("exclude", exclude).splitlines())) if exclude else frozenset()
    loop = LoopSettings(num_steps=steps, seconds=seconds_of(time_budget), seed=seed)
    job = HeadJob(family, model, place, tokens, loop, num_draft_tokens, draft_vocabulary, given, benchmark)
    with progress_bars() as progress:
        config = EngineConfig(dtype=dtype, num_threads=threads)
        record, done = train_head(job, config, progress, _Bar(progress))
    folder = save_trained(record, output or cache_dir() / "heads" / _slug(model) / family, release)
    if plot is not None:
        _draw(done, family, plot)
    if as_json:
        print(json.dumps({"output": str(folder), **asdict(done)}))
        return
    best = done.best or {}
    messages.print(
        f"{folder}: {best.get('replayed', 0):.2f} tokens per pass on held-out greedy text, "
        f"{best.get('sampled_eal', 0):.2f} expected at temperature 1; {done.step} updates"
    )


class _Bar:
    """Shows updates, and the latest EAL in the bar's name."""

    def __init__(self, progress: "NamedProgress") -> None:
        self._progress, self._name = progress, "training"

    def __call__(self, now: "Progress") -> None:
        name = f"training (EAL {now.curve[-1]['eal']:.2f})" if now.curve else "training"
        if name != self._name:
            self._progress(self._name, 1, 1)
            self._name = name
        self._progress(name, now.step, max(now.num_steps, now.step + 1))


def _draw(done: "Progress", family: str, path: Path) -> None:
    from paceline.theory.curves import Chart, Series
    from paceline.theory.plots import draw

    minutes = [point["seconds"] / 60 for point in done.curve]
    lines = [Series("temperature 0", minutes, [point["replayed"] for point in done.curve])]
    if any(point["sampled_eal"] for point in done.curve):
        lines.append(Series("temperature 1 (expected)", minutes, [point["sampled_eal"] for point in done.curve]))
    draw(Chart(f"{family}: held-out text", "minutes of training", "tokens per pass", tuple(lines)), path)


def _slug(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in model.removesuffix(".gguf")).strip("-.")
