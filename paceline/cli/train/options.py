"""What the commands that train have in common: options, times, the bar, the plot."""

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import model as o
from paceline.cli.options.case import check_seed
from paceline.cli.options.durations import seconds_of
from paceline.cli.options.prompts import prompt_ids, read_prompts, read_text
from paceline.cli.terminal.streams import TitledBar, messages, progress_bars, telling_end
from paceline.config import EngineConfig
from paceline.errors import InvalidParameter
from paceline.extras import check_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paceline.models.text.tokenizer import Tokenizer
    from paceline.training.run.loop import LoopSettings, Progress
    from paceline.training_jobs.text import TextJob
    from paceline.types import NamedProgress

TimeBudget = Annotated[str, typer.Option("--time-budget", help="For text and training: 90s, 60m, 1.5h.")]
Tokens = Annotated[int, typer.Option("--tokens", help="Answer tokens to have; written in rounds of 32 to 256 prompts.")]
Prompts = Annotated[Path | None, typer.Option("--prompts", help="Your own prompts to be answered; a line each.")]
Answers = Annotated[
    Path | None,
    typer.Option("--answers", help='What the model said before, read in place of writing: {"prompt", "answer"} lines.'),
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Prompts are text to go on with, not messages in the chat template; drafts learn them."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", min=4, help="Most tokens of a written answer.")]
Exclude = Annotated[
    Path | None, typer.Option("--exclude", help="Benchmark whose texts (13 words in a row) are kept out.")
]
Steps = Annotated[int | None, typer.Option("--steps", help="Updates, in place of what the time allows.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Highest learning rate [by what is trained].")]
Rows = Annotated[int, typer.Option("--rows", min=1, help="Least rows of text in an update.")]
Work = Annotated[Path | None, typer.Option("--work", help="Folder of text and checkpoints [cache].")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the learning curve (.png, .svg).")]
Seed = Annotated[int, typer.Option("--seed", help="Of text, order and start.")]

_DTYPE = "w8a8"
"""Default dtype of the target while it generates text, on CPUs."""
_WRITING_SHARE = 0.4
"""Largest fraction of the time budget for generating text."""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run of any training command: its text, its time, its checkpoints, the machine, and what is shown at the end."""

    model: o.Model = o.DEFAULT_MODEL
    time_budget: TimeBudget = "60m"
    tokens: Tokens = 2_000_000
    prompts: Prompts = None
    answers: Answers = None
    raw: Raw = False
    max_tokens: MaxTokens = 384
    exclude: Exclude = None
    steps: Steps = None
    rate: Rate = None
    rows: Rows = 2048
    work: Work = None
    plot: Plot = None
    seed: Seed = 0
    dtype: o.Dtype = _DTYPE
    threads: o.Threads = None
    as_json: o.Json = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_torch("train")

    def text(self) -> "TextJob":
        """The `TextJob` of the options; by default in a cache shared by all commands for the model."""
        from paceline.models.cache_dir import cache_dir
        from paceline.models.resolve import resolve_model
        from paceline.training_jobs.text import TextJob

        if self.raw and self.prompts is None and self.answers is None:
            problem = "says how prompts are put, and the model makes its own"
            raise InvalidParameter("raw", problem, "give --prompts or --answers, or leave it out")
        given = None
        if self.prompts is not None:
            tokenizer = resolve_model(self.model).tokenizer
            given = [prompt_ids(tokenizer, text, self.raw) for text in read_prompts(self.prompts)]
        answers = [] if self.answers is None else _answers(resolve_model(self.model).tokenizer, self.answers, self.raw)
        benchmark = frozenset[tuple[str, ...]]()
        if self.exclude:
            benchmark = _benchmark(self.exclude)
        place = self.work or cache_dir() / "head-training" / slug(self.model)
        seconds = seconds_of("time_budget", self.time_budget) * _WRITING_SHARE
        return TextJob(
            self.model, place, self.tokens, seconds, self.seed, given, benchmark, answers, self.max_tokens, self.raw
        )

    def loop(self, usual_rate: float) -> "LoopSettings":
        """How long to train, and how fast: at most `usual_rate` where nobody says."""
        from paceline.training.run.loop import LoopSettings

        rate = usual_rate if self.rate is None else self.rate
        return LoopSettings(
            num_steps=self.steps,
            seconds=seconds_of("time_budget", self.time_budget),
            seed=self.seed,
            rate=rate,
            rows=self.rows,
        )

    def config(self) -> EngineConfig:
        """Configuration of the engine that generates the text."""
        return EngineConfig(dtype=self.dtype, num_threads=self.threads)

    def config_on(self, device: str) -> EngineConfig:
        """As `config`, on `device`; the default dtype becomes ``auto`` where that is not the CPU."""
        dtype = "auto" if device != "cpu" and self.dtype == _DTYPE else self.dtype
        return replace(self.config(), device=device, dtype=dtype)


def _benchmark(path: Path) -> frozenset[tuple[str, ...]]:
    """The n-grams of words of a text file, or of all strings of a .jsonl or .json file.

    Raises:
        InvalidParameter: the file cannot be read, or has no n-gram.
    """
    from paceline.training.heads.conversations import NGRAM, ngrams_of

    text = read_text("exclude", path)
    try:
        lines = [text] if path.suffix == ".json" else text.split("\n")  # not splitlines: strings may hold U+2028
        texts = list(_strings([json.loads(line) for line in lines if line.strip()]))
    except (ValueError, RecursionError):
        if path.suffix in (".jsonl", ".json"):  # as a text its escapes would be words, and hide some n-grams
            raise InvalidParameter("exclude", f"{path} is not JSON throughout", "mend it") from None
        texts = [text]
    found = ngrams_of(texts)
    if not found:
        problem = f"{path} has no {NGRAM} words in a row, which are what is looked for"
        raise InvalidParameter("exclude", problem, "give the benchmark's texts, whole")
    return frozenset(found)


def _strings(value: Any) -> "Iterator[str]":
    """Yield every string in a JSON value, recursively."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def _answers(tokenizer: "Tokenizer", path: Path, raw: bool) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of every line that has an answer, as token ids. Raises InvalidParameter when none has."""
    from paceline.evaluation.prompts import load_prompts

    try:
        records = load_prompts(str(path))
    except InvalidParameter as error:
        raise error.about("answers") from None
    found = [
        (prompt_ids(tokenizer, one.text, raw), tokenizer.encode(one.answer, False)) for one in records if one.answer
    ]
    if not found:
        remedy = 'write {"prompt": ..., "answer": ...} on each line'
        raise InvalidParameter("answers", f"{path} has prompts and no answers", remedy)
    return found


def check_places(output: Path, plot: Path | None) -> Path:
    """`output`, a folder that can be written into. Refuses now what could not be written at the end of a long run.

    Raises:
        InvalidParameter: `output` or `plot` cannot be written.
    """
    from paceline.disk import check_folder
    from paceline.theory.plots import check_drawable

    if plot is not None:
        check_drawable(plot, "plot")
    return check_folder("output", output)


@contextmanager
def training_bars() -> "Iterator[NamedProgress]":
    """Progress bars; after Ctrl-C, print how to resume."""
    with telling_end("ended; start the same command again to go on"), progress_bars() as progress:
        yield progress


def remark(line: str) -> None:
    """Print a remark on standard error."""
    messages.print(line, soft_wrap=True)


class TrainingBar:
    """Shows updates, and the latest EAL in the bar's name."""

    def __init__(self, progress: "NamedProgress") -> None:
        self._bar = TitledBar(progress)

    def __call__(self, now: "Progress") -> None:
        title = f"training (EAL {now.curve[-1]['eal']:.2f})" if now.curve else "training"
        self._bar(title, now.step, max(now.num_steps, now.step + 1))


def figure(tokens: float) -> str:
    """`tokens` per pass formatted, "-" for 0, where nothing was measured."""
    return f"{tokens:.2f}" if tokens else "-"


def updates(done: "Progress") -> str:
    """A phrase with the number of updates, and with the one whose weights are saved, if it is not the last."""
    best = (done.best or {}).get("step", done.step)
    return f"{done.step} updates" + ("" if best == done.step else f", saved as it was after {best}")


def greedy_figure(evaluation: "Mapping[str, Any] | None") -> str:
    """A phrase with the tokens per pass on held-out greedy text, or saying that there was none."""
    tokens = (evaluation or {}).get("replayed", 0)
    where = "on held-out greedy text" if tokens else "(no greedy text was held out)"
    return f"{figure(tokens)} tokens per pass {where}"


def draw_curve(done: "Progress", what: str, path: Path) -> None:
    """Plot tokens per pass on held-out text over minutes of training into `path`."""
    from paceline.disk import writing
    from paceline.theory.curves import Chart, Series
    from paceline.theory.plots import draw

    minutes = [point["seconds"] / 60 for point in done.curve]
    lines = [Series("temperature 0", minutes, [point["replayed"] for point in done.curve])]
    if any(point["sampled_eal"] for point in done.curve):
        lines.append(Series("temperature 1 (expected)", minutes, [point["sampled_eal"] for point in done.curve]))
    chart = Chart(f"{what}: held-out text", "minutes of training", "tokens per pass", tuple(lines))
    with writing("plot", path):
        draw(chart, path)


def slug(model: str) -> str:
    """A model's name turned into a valid name of a folder."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in model.removesuffix(".gguf")).strip("-.")
