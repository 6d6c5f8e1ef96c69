"""What every benchmark program shares: a table for people, then one JSON line for machines with where it came from."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(stderr=True)

PACKAGES = ("paceline", "numpy", "numba", "llvmlite", "torch", "transformers", "llama-cpp-python")


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table to standard error, so that standard output can be piped."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(f"{x:.2f}" if isinstance(x, float) else str(x) for x in row))
    console.print(table)


def finish(result: dict) -> None:
    """Print `result` with its provenance as the last line of standard output."""
    print(json.dumps({**result, "provenance": provenance()}))


def provenance() -> dict:
    """Versions, commit, command and machine."""
    return {
        "argv": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def geometric_mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def read_prompts(path: Path) -> list[dict]:
    """Prompts of a .jsonl file: a line needs ``turns`` (the first is used) or ``prompt``; ``category`` groups them."""
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        record = json.loads(line)
        text = record["turns"][0] if "turns" in record else record.get("prompt")
        if not text:
            raise SystemExit(f"{path}, line {number}: has neither turns nor prompt")
        prompts.append({"text": text, "category": record.get("category", "all")})
    return prompts


def _commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
