"""`paceline layers`: finds which layers the layer-skip drafter should leave out, on the user's own text."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.prompts import read_text
from paceline.cli.terminal.streams import output, progress_bars, show_table
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from paceline.evaluation.layer_search import LayerChoice


def layers(
    texts: Annotated[list[Path], typer.Argument(help="Text files of the kind that will be generated.")],
    model: o.Model = o.DEFAULT_MODEL,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens read of each file.")] = 256,
    breadth: Annotated[int, typer.Option("--breadth", help="Layers tried in every round but the first.")] = 12,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    as_json: o.Json = False,
) -> None:
    """Find the layers that the model can miss while it drafts for itself, and the speed-up to expect.

    Takes about a minute for a small model; passes are timed, so run it while nothing else runs.

    Examples:

        paceline layers answers.txt

        paceline layers --max-tokens 512 chapter1.txt chapter2.txt --json
    """
    from paceline.config import EngineConfig
    from paceline.engine.setup.load import load
    from paceline.evaluation.layer_search import best_choice, search_skipped_layers

    if max_tokens < 2:
        raise InvalidParameter("max_tokens", f"{max_tokens} is less than 2", "read at least two tokens")
    written = [read_text("texts", path) for path in texts]
    config = EngineConfig(dtype=dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    with progress_bars() as progress:
        loaded = load(model, config, progress)
        ids = [loaded.source.tokenizer.encode(text)[:max_tokens] for text in written]
        choices = search_skipped_layers(
            loaded.model, ids, breadth=breadth, progress=lambda done, total: progress("leaving out layers", done, total)
        )
    best = best_choice(choices)
    if as_json:
        print(json.dumps({"best": asdict(best), "tried": [asdict(choice) for choice in choices]}))
        return
    show_table(_table(choices, best), output)
    print(_advice(best))


def _advice(best: "LayerChoice") -> str:
    if best.speedup <= 1:
        return "No set of layers is expected to gain anything with this model on this machine."
    option = json.dumps(list(best.skip_layers), separators=(",", ":"))
    return f"--draft layer_skip --num-draft-tokens {best.num_draft_tokens} --draft-option 'skip_layers={option}'"


def _table(choices: "Sequence[LayerChoice]", best: "LayerChoice") -> Table:
    table = Table("left out", "agreement", "draft length", "predicted speed-up")
    for choice in choices:
        cells = (
            " ".join(map(str, choice.skip_layers)), f"{choice.agreement:.2f}", str(choice.num_draft_tokens),
            f"{choice.speedup:.2f}",
        )  # fmt: skip
        table.add_row(*cells, style="bold" if choice is best else None)
    return table
