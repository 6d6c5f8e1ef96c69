"""`paceline models`: the built-in names, and what lies in the cache."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.terminal import output, show_table
from paceline.models.cache_dir import cache_dir
from paceline.models.download import BUILTIN_MODELS, weights_path


def models(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """List built-in models and the cache.

    Any GGUF file, safetensors folder or hub id works too: Llama, Mistral, Qwen2 and 2.5, Qwen2-MoE and Mixtral on the
    fast CPU kernels, Qwen3, Qwen3-MoE and GPT-2 on torch (mixtures of experts from safetensors only).

    Examples:

        paceline models

        paceline models --json
    """
    rows = [
        {"name": name, "licence": model.licence, "bytes": model.num_bytes, "downloaded": weights_path(model).exists()}
        for name, model in BUILTIN_MODELS.items()
    ]
    cache = {"folder": str(cache_dir()), "bytes": _size(cache_dir())}
    if as_json:
        print(json.dumps({"models": rows, "cache": cache}))
        return
    table = Table("name", "licence", "size", "downloaded")
    for row in rows:
        table.add_row(row["name"], row["licence"], f"{row['bytes'] / 1e6:.0f} MB", "yes" if row["downloaded"] else "no")
    show_table(table, output)
    print(f"cache: {cache['folder']}, {cache['bytes'] / 1e6:.0f} MB (downloads, converted weights, kernels)")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
