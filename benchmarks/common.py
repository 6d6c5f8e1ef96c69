"""Shared by all benchmark programs: a table for people, then one JSON line with its provenance for machines."""

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from paceline import LLM
from paceline.evaluation.provenance import provenance
from paceline.evaluation.report import Run

T = TypeVar("T")

console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table to standard error, so that standard output can be piped."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row))
    console.print(table)


def markdown(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table that `show` prints, for documents."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def finish(result: dict) -> None:
    """Print `result` with its provenance as the last line of standard output."""
    print(json.dumps({**result, "provenance": provenance()}))


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def mean(values: Iterable[float]) -> float | None:
    """The arithmetic mean; None without values."""
    kept = list(values)
    return statistics.fmean(kept) if kept else None


def geometric_mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def read_prompts(path: Path) -> list[dict]:
    """Prompts of a .jsonl file: a line needs ``turns`` (the first is used) or ``prompt``; ``category`` groups them.

    ``suffix`` is the text after a gap to fill, which the prompt precedes.
    """
    prompts = []
    for number, line in enumerate(path.read_text().removesuffix("\n").split("\n"), 1):
        record = json.loads(line)
        text = record["turns"][0] if "turns" in record else record.get("prompt")
        if not text:
            raise SystemExit(f"{path}, line {number}: has neither turns nor prompt")
        prompts.append({"text": text, "suffix": record.get("suffix"), "category": record.get("category", "all")})
    return prompts


def prompt_ids(llm: LLM, text: str, raw: bool) -> list[int]:
    """Token ids of a prompt, in the model's chat template unless `raw`."""
    return llm.tokenizer.encode(text) if raw else llm.chat_prompt([{"role": "user", "content": text}])


def rotated(items: Sequence[T], number: int) -> list[T]:
    """`items` rotated left by `number`, so that the first one changes from prompt to prompt."""
    start = number % len(items)
    return [*items[start:], *items[:start]]


def figures(run: Run, plain: Run) -> dict:
    """The statistics of a run; its speed-up is over `plain`, plain decoding of the same prompt."""
    stats = run.output.stats
    busy = stats.draft_seconds + stats.verify_seconds + stats.other_seconds
    return {
        "tokens": len(run.output.token_ids),
        "tokens_per_second": run.tokens_per_second,
        "first_token_seconds": run.first_token_seconds,
        "speedup": run.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else None,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "draft_seconds": stats.draft_seconds,
        "verify_seconds": stats.verify_seconds,
        "other_seconds": stats.other_seconds,
        "draft_share": stats.draft_seconds / busy if busy else None,
        "identical": run.output.token_ids == plain.output.token_ids,
    }


def summarise(runs: Sequence[dict]) -> dict:
    """Medians and means over prompts; the speed-up is the geometric mean of the prompts' own ratios."""
    ratios = [r["speedup"] for r in runs if r["speedup"]]
    return {
        "prompts": len(runs),
        "tokens_per_second": median(r["tokens_per_second"] for r in runs),
        "first_token_seconds": median(r["first_token_seconds"] for r in runs),
        "speedup": geometric_mean(ratios) if ratios else None,
        "mean_speedup": mean(ratios),
        "acceptance_length": mean(r["acceptance_length"] for r in runs if r["acceptance_length"]),
        "acceptance_rate": mean(r["acceptance_rate"] for r in runs if r["acceptance_rate"] is not None),
        "draft_seconds": mean(r["draft_seconds"] for r in runs),
        "draft_share": mean(r["draft_share"] for r in runs if r["draft_share"] is not None),
        "identical": sum(r["identical"] for r in runs),
    }
