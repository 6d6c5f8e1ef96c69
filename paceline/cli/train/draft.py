"""`paceline train draft`: a whole draft model for your own model, distilled from it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from paceline.cli.options.groups import grouped
from paceline.cli.terminal.streams import messages, show_table
from paceline.cli.terminal.streams import output as standard_output
from paceline.cli.train import options as t
from paceline.cli.train.command_line import command_line
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.training_jobs.draft import DraftJob
    from paceline.training_jobs.pool import PoolReport

_RATE, _WHOLE_MODEL_RATE = 1e-3, 2e-4
"""Default peak learning rates: for layers of the target or LoRA updates, and for all weights of a model."""
_SERVED_SHARE = 0.1
"""Fraction of those rates for further training on served texts, as for heads."""
_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Wishes:
    """What draft is to be made."""

    begin_with: Annotated[
        str | None, typer.Option("--begin-with", help="Smaller model of the same vocabulary, in place of layers.")
    ] = None
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers to keep: how many, or which (0,1,28,29) [4; all].")
    ] = None
    divergence: Annotated[
        str, typer.Option("--divergence", help="Distance: forward_kl, reverse_kl, jsd, tvd or tvd++.")
    ] = "forward_kl"
    on_policy: Annotated[
        float, typer.Option("--on-policy", help="Share of texts that the draft writes itself, 0 to 1.")
    ] = 0.0
    sparse: Annotated[
        bool, typer.Option("--sparse", help="SPIRe: attention to a window and a feedback memory, for long contexts.")
    ] = False
    lora_rank: Annotated[
        int | None, typer.Option("--lora-rank", min=1, help="Train updates of this rank in place of all weights.")
    ] = None
    window: Annotated[
        int | None, typer.Option("--window", min=1, help="With --sparse: tokens that a draft sees [512].")
    ] = None
    num_draft_tokens: Annotated[int, typer.Option("--num-draft-tokens", "-k", help="Drafts that are measured.")] = 4
    served: Annotated[
        Path | None,
        typer.Option("--served", help="With --begin-with: learn from what serve --keep-served kept, at a tenth of it."),
    ] = None

    def check_pool(self, pool: int | None, match: float | None, plot: Path | None) -> None:
        """Raise InvalidParameter for options that do not go together."""
        if self.sparse and pool is not None:
            problem = "drafts with a memory are not merged into one tree"
            raise InvalidParameter("pool", problem, "leave --pool or --sparse out")
        if self.served is not None and pool is not None:
            raise InvalidParameter("pool", "is of new drafts", "leave --pool or --served out")
        if match is not None and pool is None:
            raise InvalidParameter("match", "is for the drafts of a pool", "give --pool too, or leave it out")
        if plot is not None and pool is not None:
            raise InvalidParameter("plot", "draws the training of one draft", "leave --plot or --pool out")

    def job(self, run: t.TrainingRun, command: str) -> "DraftJob":
        """See `DraftJob`. Raises as it, and as what it is made of."""
        from paceline.models.feedback import Sparse
        from paceline.training_jobs.draft import DraftJob

        if self.window is not None and not self.sparse:
            raise InvalidParameter("window", "is for drafts with a memory", "give --sparse too, or leave it out")
        sparse = None if not self.sparse else Sparse() if self.window is None else Sparse(self.window)
        whole = self.begin_with is not None and self.lora_rank is None
        usual = (_WHOLE_MODEL_RATE if whole else _RATE) * (1.0 if self.served is None else _SERVED_SHARE)
        layers = None if self.begin_with is not None else _LAYERS
        return DraftJob(
            run.text(), run.loop(usual), self.begin_with,
            layers if self.layers is None else _layers(self.layers), self.divergence, self.on_policy,
            self.num_draft_tokens, sparse, self.lora_rank, self.served, command,
        )  # fmt: skip


@grouped
def draft(
    *,
    context: typer.Context,
    run: t.TrainingRun,
    wishes: Wishes,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the draft model [cache].")] = None,
    pool: Annotated[
        int | None,
        typer.Option(
            "--pool",
            help="Boost-tune so many drafts, each on what others miss: equal parts of the time, or --steps each.",
        ),
    ] = None,
    match: Annotated[
        float | None,
        typer.Option("--match", help="With --pool: leave out texts of which so much is matched, not single places."),
    ] = None,
) -> None:
    """Distil a draft model (DistillSpec): a few layers of the model, or a smaller model, learn to say what it says.

    The model writes its own text, or the draft goes on to its prompts (--on-policy) and the model corrects it. The
    result is an ordinary model folder. Takes about as long as --time-budget says, an hour unless given, and one
    round of writing, of some minutes, at least. Ended runs go on where they were: start the same command again.

    Examples:

        paceline train draft -m smollm2-135m --layers 4 --time-budget 60m -o my-draft

        paceline generate -m smollm2-135m -d draft_model --draft-model my-draft "Why is the sky blue?"

        paceline train draft -m target.gguf --begin-with small.gguf --divergence tvd --on-policy 0.5

        paceline train draft -m 1.5b.gguf --begin-with 0.5b.gguf --lora-rank 16 --time-budget 60m

        paceline train draft -m smollm2-135m --begin-with my-draft --served served/ --time-budget 10m -o my-draft-2

        paceline train draft -m smollm2-135m --pool 3 --time-budget 3h -o pool

        paceline train draft -m smollm2-135m --sparse --layers 4 -o sparse-draft

        paceline generate -m smollm2-135m -d spire --draft-model sparse-draft - < long_text.txt
    """
    from paceline.models.cache_dir import cache_dir
    from paceline.training_jobs.draft import train_draft
    from paceline.training_jobs.pool import train_pool

    wishes.check_pool(pool, match, run.plot)
    job = wishes.job(run, command_line(context))
    folder = t.check_places(output or cache_dir() / "drafts" / t.slug(run.model) / job.name, run.plot)
    with t.training_bars() as progress:
        config, bar = run.config(), t.TrainingBar(progress)
        report = None if pool is None else train_pool(job, pool, match, config, folder, progress, bar, t.remark)
        done = train_draft(job, config, folder, progress, bar, t.remark) if report is None else report.runs[0]
    if report is not None:
        _show_pool(report, run.as_json)
        return
    if run.plot is not None:
        t.draw_curve(done, "draft model", run.plot)
    if run.as_json:
        print(json.dumps({"output": str(folder), **asdict(done)}))
        return
    _show(done.curve[0], done.best or done.curve[0])
    messages.print(f"{folder}: a draft model for {run.model}, {t.updates(done)}")


def _show_pool(report: "PoolReport", as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report)))
        return
    table = Table("held-out greedy text", "learnt from", "tokens per pass")
    for folder, texts, places, alone in zip(report.folders, report.texts, report.places, report.alone, strict=True):
        table.add_row(folder, f"{places:,} places of {texts:,} texts", t.figure(alone))
    table.add_row("merged into one tree", "", t.figure(report.merged))
    show_table(table, standard_output)
    print(f"-d specinfer --draft-option 'models={json.dumps(report.folders)}'")


def _show(before: dict, after: dict) -> None:
    table = Table("held-out text", "before", "after")
    for name, key in (("tokens per pass, temperature 0", "replayed"), ("expected at temperature 1", "sampled_eal")):
        table.add_row(name, t.figure(before[key]), t.figure(after[key]))
    for name, key in (("acceptance, temperature 0", "greedy"), ("acceptance, temperature 1", "sampled")):
        table.add_row(name, *(f"{point[key][0]:.3f}" if point[key] else "-" for point in (before, after)))
    show_table(table, standard_output)


def _layers(text: str) -> int | tuple[int, ...]:
    """Parse a number of layers, or a list of their indices."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0 or (len(numbers) == 1 and "," not in text and numbers[0] < 1):
        raise InvalidParameter("layers", f"{text!r} names no layers", "write how many (4) or which (0,1,28,29)")
    return numbers[0] if "," not in text else numbers
